// ioredis against nodes of likes: `node cluster.mjs MODULE PORT`. Prints what it has counted as one line of JSON.
import { createRequire } from "node:module";

const [module, port] = process.argv.slice(2);
const { Cluster } = createRequire(import.meta.url)(module);
const cluster = new Cluster([{ host: "127.0.0.1", port: Number(port) }]);
const items = Array.from({ length: 40 }, (_, number) => `photo:${number}`);
const before = await Promise.all(items.map((item) => cluster.setbit(item, 2017, 1)));
const counts = await Promise.all(items.map((item) => cluster.bitcount(item)));
const newest = await cluster.call("LIKE.NEWEST", items[0]);
console.log(JSON.stringify({ before, counts, newest, nodes: cluster.nodes("master").length }));
cluster.disconnect();
