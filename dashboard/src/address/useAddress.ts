import { useSyncExternalStore } from "react";

import { type Address, readAddress, writeAddress } from "./address.ts";

function subscribe(onChange: () => void): () => void {
  addEventListener("hashchange", onChange);
  return () => removeEventListener("hashchange", onChange);
}

/** Returns what the address of the page shows. */
export function useAddress(): Address {
  return readAddress(useSyncExternalStore(subscribe, () => location.hash));
}

/** Shows another address; `replace`: without a step back to the present one. */
export function goTo(address: Address, replace = false): void {
  const hash = writeAddress(address);
  if (!replace) location.hash = hash;
  else if (location.hash !== hash) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}
