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

export const NODE: Readonly<{ width: number; height: number }> = { width: 208, height: 72 };
const PADDING = 16;
const MARGIN = 8;

/** Returns where everything is. Edges from or to what is no node are left out. The same graph is placed the same way. */
export function placeGraph(nodes: readonly GraphNode[], edges: readonly GraphEdge[]): PlacedGraph {
  const regionOf = new Map(nodes.map((node) => [node.id, node.region]));
  const drawn = edges.filter((edge) => regionOf.has(edge.from) && regionOf.has(edge.to));
  const inside = Map.groupBy(drawn.filter((edge) => regionOf.get(edge.from) === regionOf.get(edge.to)), (edge) =>
    regionOf.get(edge.from),
  );
  const parts = new Map<string, PlacedLayers>();
  for (const [region, members] of Map.groupBy(nodes, (node) => node.region)) {
    const sizes = new Map(members.map((node) => [node.id, NODE]));
    parts.set(region, placeLayers(sizes, inside.get(region) ?? [], { rank: 56, node: 20, margin: PADDING }));
  }
  const between = drawn
    .map((edge) => ({ from: regionOf.get(edge.from) ?? "", to: regionOf.get(edge.to) ?? "" }))
    .filter((edge) => edge.from !== edge.to);
  const whole = placeLayers(parts, between, { rank: 64, node: 28, margin: MARGIN });
  const placed = new Map<string, Box>();
  const routes = new Map<string, readonly Point[]>();
  for (const [region, part] of parts) {
    const frame = whole.boxes.get(region) ?? { x: 0, y: 0 };
    for (const [id, box] of part.boxes) placed.set(id, { ...box, x: box.x + frame.x, y: box.y + frame.y });
    for (const { from, to, points } of part.edges)
      routes.set(keyOf(from, to), points.map(({ x, y }) => ({ x: x + frame.x, y: y + frame.y })));
  }
  return {
    width: whole.width,
    height: whole.height,
    nodes: placed,
    frames: whole.boxes,
    edges: drawn.map((edge) => ({
      ...edge,
      points: routes.get(keyOf(edge.from, edge.to)) ?? straight(placed.get(edge.from), placed.get(edge.to)),
    })),
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

function straight(from: Box | undefined, to: Box | undefined): readonly Point[] {
  if (from === undefined || to === undefined) return [];
  return [
    { x: from.x + from.width, y: from.y + from.height / 2 },
    { x: to.x, y: to.y + to.height / 2 },
  ];
}

function keyOf(from: string, to: string): string {
  return JSON.stringify([from, to]);
}
