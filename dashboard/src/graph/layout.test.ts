import assert from "node:assert/strict";
import { test } from "node:test";

import { type Box, type GraphEdge, type GraphNode, placeGraph } from "./layout.ts";

const NODES: readonly GraphNode[] = [
  { id: "orders", region: "0" },
  { id: "clean", region: "0" },
  { id: "priced", region: "1" },
  { id: "out", region: "1" },
  { id: "top", region: "1" },
];
const EDGES: readonly GraphEdge[] = [
  { from: "orders", to: "clean" },
  { from: "clean", to: "priced" },
  { from: "priced", to: "out" },
  { from: "priced", to: "top" },
];

function overlap(one: Box, other: Box): boolean {
  return (
    one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height
  );
}

function contains(outer: Box, inner: Box): boolean {
  return (
    outer.x <= inner.x && outer.y <= inner.y && outer.x + outer.width >= inner.x + inner.width && outer.y + outer.height >= inner.y + inner.height
  );
}

test("a step is right of its inputs, and no two steps overlap", () => {
  const placed = placeGraph(NODES, EDGES);
  for (const { from, to } of EDGES) {
    const [left, right] = [placed.nodes.get(from), placed.nodes.get(to)];
    assert.ok(left && right && left.x + left.width < right.x, `${from} is left of ${to}`);
  }
  const boxes = [...placed.nodes.values()];
  for (const one of boxes) for (const other of boxes) if (one !== other) assert.ok(!overlap(one, other));
  assert.ok(boxes.every((box) => contains({ x: 0, y: 0, width: placed.width, height: placed.height }, box)));
});

test("a frame is around the steps of its region and no others", () => {
  const placed = placeGraph(NODES, EDGES);
  for (const node of NODES) {
    const box = placed.nodes.get(node.id);
    assert.ok(box);
    for (const [region, frame] of placed.frames) {
      if (region === node.region) assert.ok(contains(frame, box));
      else assert.ok(!overlap(frame, box));
    }
  }
});

test("an edge has points from its step to the next; one of an unknown step is left out", () => {
  const placed = placeGraph(NODES, [...EDGES, { from: "nowhere", to: "top" }]);
  assert.equal(placed.edges.length, EDGES.length);
  assert.ok(placed.edges.every((edge) => edge.points.length >= 2));
});

test("no edge runs through a step that it does not belong to", () => {
  const nodes = [...NODES, { id: "prices", region: "1" }];
  const edges = [...EDGES, { from: "prices", to: "priced" }];
  const placed = placeGraph(nodes, edges);
  for (const edge of placed.edges)
    for (const [id, box] of placed.nodes)
      if (id !== edge.from && id !== edge.to)
        for (const [index, point] of edge.points.slice(1).entries()) {
          const before = edge.points[index] ?? point;
          for (let part = 0; part <= 1; part += 0.05) {
            const [x, y] = [before.x + (point.x - before.x) * part, before.y + (point.y - before.y) * part];
            assert.ok(!overlap(box, { x, y, width: 0, height: 0 }), `${edge.from} to ${edge.to} through ${id}`);
          }
        }
});

test("names are no obstacle, and a job without steps has no size", () => {
  const odd = ["__proto__", "constructor", "<script>", "frame 0", ""];
  const placed = placeGraph(odd.map((id) => ({ id, region: "frame 0" })), []);
  assert.equal(placed.nodes.size, odd.length);
  assert.deepEqual([placeGraph([], []).width, placeGraph([], []).nodes.size], [0, 0]);
});

for (const [shape, size] of [
  ["in regions of ten", 10],
  ["in one region", 300],
  ["each a region", 1],
] as const)
  test(`300 steps, ${shape}, are placed within a second`, () => {
    const nodes = Array.from({ length: 300 }, (_, index) => ({ id: `s${index}`, region: `${Math.floor(index / size)}` }));
    const edges = nodes.slice(1).map((node, index) => ({ from: `s${Math.max(0, index - (index % 7))}`, to: node.id }));
    const began = process.cpuUsage();
    assert.equal(placeGraph(nodes, edges).nodes.size, 300);
    const { user } = process.cpuUsage(began); // in microseconds; other processes do not count
    assert.ok(user < 1_000_000, `${user / 1000} ms`);
  });
