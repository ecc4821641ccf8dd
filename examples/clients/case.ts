// The example of docs/http.md with the types for TypeScript: `node case.js URL KEY`. Prints one line of JSON.
declare const process: { argv: string[] };
const [url, key] = process.argv.slice(2);

// begin of the example
import createClient from "openapi-fetch";
import type { paths } from "./muster.js";

const client = createClient<paths>({ baseUrl: url, headers: { "X-API-Key": key } });
const params = { path: { room: "sports:final" }, header: { "Idempotency-Key": "goal-2" } };
const said = await client.POST("/api/v1/rooms/{room}/messages", { params, body: { data: "second" } });
if (said.error) throw new Error(`${said.error.code}: ${said.error.detail}`);

let likers: string[] = [];
for (let after: string | null = ""; after !== null; ) {
  const page: { data?: { users: string[]; next: string | null }; error?: unknown } = await client.GET(
    "/api/v1/likes/{kind}/{item}/likers",
    { params: { path: { kind: "share", item: "1000" }, query: { limit: 2, after } } },
  );
  if (!page.data) throw new Error("no page");
  likers.push(...page.data.users);
  after = page.data.next;
}
// end of the example

const last = await client.GET("/api/v1/rooms/{room}/messages", { params: { path: { room: "sports:final" }, query: { history: 10 } } });
const again = await client.POST("/api/v1/rooms/{room}/messages", { params, body: { data: "second" } });
if (again.response.headers.get("idempotency-replayed") !== "true") throw new Error("it was published twice");
const sent = await client.POST("/api/v1/topics/{topic}/messages", {
  params: { path: { topic: "orders" } },
  body: { data: { order: 8 }, in_ms: 3_600_000, id: "typescript" },
});
if (sent.error) throw new Error(sent.error.code);
const shown = await client.GET("/api/v1/topics/{topic}/messages/{id}", { params: { path: { topic: "orders", id: "typescript" } } });
const refused = await client.GET("/api/v1/rooms/{room}/messages", { params: { path: { room: "x".repeat(300) } } });
console.log(
  JSON.stringify({
    history: last.data?.messages.map((message) => message.data),
    likers,
    state: shown.data?.state,
    data: shown.data?.data,
    problem: refused.error?.code,
  }),
);
