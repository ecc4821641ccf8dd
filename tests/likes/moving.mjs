// node-redis against nodes of likes while partitions move: `node moving.mjs MODULE PORT`. Likes items one after the other until its
// stdin ends, and prints how many it has liked, how many it finds again, and the errors that its calls raised, as one line of JSON.
import { createRequire } from "node:module";

const [module, port] = process.argv.slice(2);
const { createCluster } = createRequire(import.meta.url)(module);
const cluster = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
const errors = {};
const failed = (error) => (errors[String(error.message ?? error)] = (errors[String(error.message ?? error)] ?? 0) + 1);
cluster.on("error", () => {}); // of connections to nodes that have gone: what counts is what calls answer
let ends = false;
process.stdin.on("end", () => (ends = true)).resume();
await cluster.connect();
const liked = [];
for (let number = 0; !ends; number++) {
  try {
    await cluster.setBit(`photo:${number}`, 2017, 1);
    liked.push(number);
    if (liked.length === 1) console.log("begun");
  } catch (error) {
    failed(error);
  }
  await new Promise((after) => setTimeout(after, 2));
}
let found = 0;
for (const number of liked) found += await cluster.getBit(`photo:${number}`, 2017);
console.log(JSON.stringify({ liked: liked.length, found, errors }));
process.exit(0);
