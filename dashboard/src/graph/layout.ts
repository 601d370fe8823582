// Where the steps of a job are drawn: in layers from left to right, the steps of a region inside a frame.
//
// Each region is placed by itself, then the frames of the regions are. Regions do not form circles: one reads what
// another has completed. (Placing everything at once, as a compound graph, takes seconds for some hundred steps.)
import { Graph, layout } from "@dagrejs/dagre";

export interface GraphNode {
  readonly id: string;
  /** Steps of the same region are inside the same frame. */
  readonly region: string;
}

export interface GraphEdge {
  readonly from: string;
  readonly to: string;
}

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface PlacedGraph {
  readonly width: number;
  readonly height: number;
  /** By id; `x` and `y` are of the upper left corner. */
  readonly nodes: ReadonlyMap<string, Box>;
  readonly frames: ReadonlyMap<string, Box>;
  readonly edges: readonly (GraphEdge & { readonly points: readonly Point[] })[];
}

export const NODE: Readonly<{ width: number; height: number }> = { width: 200, height: 76 };
const LANE: Readonly<{ width: number; height: number }> = { width: 1, height: 1 };
const PADDING = 16;
const MARGIN = 8;

/** Returns where everything is. Edges from or to what is no node are left out. The same graph is placed the same way. */
export function placeGraph(nodes: readonly GraphNode[], edges: readonly GraphEdge[]): PlacedGraph {
  const regionOf = new Map(nodes.map((node) => [node.id, node.region]));
  const drawn = edges.filter((edge) => regionOf.has(edge.from) && regionOf.has(edge.to));
  const parts = new Map<string, PlacedLayers>();
  for (const [region, members] of Map.groupBy(nodes, (node) => node.region)) {
    const sizes = new Map<string, Size>(members.map((node) => [nodeKey(node.id), NODE]));
    const inside: GraphEdge[] = [];
    const fed = new Set(drawn.filter(({ from, to }) => regionOf.get(from) === region && regionOf.get(to) === region).map(({ to }) => to));
    for (const { from, to } of drawn) {
      const [begins, ends] = [regionOf.get(from) === region, regionOf.get(to) === region];
      if (begins && ends) inside.push({ from: nodeKey(from), to: nodeKey(to) });
      else if (ends && fed.has(to)) {
        // What enters a region behind its first layer has a lane of its own there, so that no line runs through a step.
        sizes.set(entryKey(from), LANE);
        inside.push({ from: entryKey(from), to: nodeKey(to) });
      }
    }
    parts.set(region, placeLayers(sizes, inside, { rank: 44, node: 18, margin: PADDING }));
  }
  const between = drawn
    .map((edge) => ({ from: regionOf.get(edge.from) ?? "", to: regionOf.get(edge.to) ?? "" }))
    .filter((edge) => edge.from !== edge.to);
  const whole = placeLayers(parts, between, { rank: 96, node: 24, margin: MARGIN });
  const placed = new Map<string, Box>();
  const routes = new Map<string, readonly Point[]>();
  for (const [region, part] of parts) {
    const frame = whole.boxes.get(region) ?? { x: 0, y: 0 };
    const moved = ({ x, y }: Point): Point => ({ x: x + frame.x, y: y + frame.y });
    for (const [key, box] of part.boxes) placed.set(key, { ...box, ...moved(box) });
    for (const { from, to, points } of part.edges) routes.set(keyOf(from, to), points.map(moved));
  }
  const routeOf = ({ from, to }: GraphEdge): readonly Point[] => {
    const inner = routes.get(keyOf(nodeKey(from), nodeKey(to)));
    if (inner !== undefined) return inner;
    const [source, target] = [placed.get(nodeKey(from)), placed.get(nodeKey(to))];
    if (source === undefined || target === undefined) return [];
    const begin = { x: source.x + source.width, y: source.y + source.height / 2 };
    const lane = routes.get(keyOf(entryKey(from), nodeKey(to))) ?? [{ x: target.x, y: target.y + target.height / 2 }];
    const frame = whole.boxes.get(regionOf.get(to) ?? "");
    return [begin, { x: frame?.x ?? begin.x, y: lane[0]?.y ?? begin.y }, ...lane];
  };
  return {
    width: whole.width,
    height: whole.height,
    nodes: new Map(nodes.map(({ id }) => [id, placed.get(nodeKey(id)) ?? { x: 0, y: 0, ...NODE }])),
    frames: whole.boxes,
    edges: drawn.map((edge) => ({ ...edge, points: routeOf(edge) })),
  };
}

interface Size {
  readonly width: number;
  readonly height: number;
}

interface PlacedLayers extends Size {
  readonly boxes: ReadonlyMap<string, Box>;
  readonly edges: readonly (GraphEdge & { readonly points: readonly Point[] })[];
}

function placeLayers(
  sizes: ReadonlyMap<string, Size>,
  edges: readonly GraphEdge[],
  space: { readonly rank: number; readonly node: number; readonly margin: number },
): PlacedLayers {
  if (sizes.size === 0) return { width: 0, height: 0, boxes: new Map(), edges: [] };
  const graph = new Graph();
  graph.setGraph({
    rankdir: "LR",
    ranker: "tight-tree",
    ranksep: space.rank,
    nodesep: space.node,
    marginx: space.margin,
    marginy: space.margin,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  // Ids of any text: without a prefix some of them would be names of the objects that the library keeps them in.
  for (const [id, { width, height }] of sizes) graph.setNode(`n ${id}`, { width, height });
  for (const edge of edges) graph.setEdge(`n ${edge.from}`, `n ${edge.to}`);
  layout(graph);
  const boxes = new Map<string, Box>();
  for (const id of sizes.keys()) {
    const { x, y, width, height } = graph.node(`n ${id}`);
    boxes.set(id, { x: x - width / 2, y: y - height / 2, width, height });
  }
  const { width = 0, height = 0 } = graph.graph();
  const routes = edges.map((edge) => ({ ...edge, points: graph.edge(`n ${edge.from}`, `n ${edge.to}`).points ?? [] }));
  return { width, height, boxes, edges: routes };
}

function nodeKey(id: string): string {
  return `step ${id}`;
}

function entryKey(from: string): string {
  return `entry ${from}`;
}

function keyOf(from: string, to: string): string {
  return JSON.stringify([from, to]);
}
