import { defineConfig } from "vite";

export default defineConfig({
  build: {
    target: "es2022",
    // The Content-Security-Policy allows files of the server only: nothing is put into the page or into a style sheet.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    // For development: `node node_modules/vite/bin/vite.js` beside a JobManager without authentication.
    proxy: Object.fromEntries(
      ["config", "jobs", "overview", "events", "resources", "taskmanagers", "jobmanager", "whoami", "versions"].map((path) => [
        `/${path}`,
        { target: process.env["FLINTLOCK_URL"] ?? "http://127.0.0.1:8081", changeOrigin: true },
      ]),
    ),
  },
});
