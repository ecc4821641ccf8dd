// Requests to the console, each with the token of the session.
let token = "";
let lost = () => {};

export class Failure extends Error {
  constructor(problem, status) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.code = problem.code || "";
    this.status = status;
  }
}

export function use(session, onLost) {
  token = session ? session.csrf : "";
  lost = onLost;
}

export async function ask(method, path, body) {
  return (await answer(method, path, body)).document;
}

export async function answer(method, path, body, type = "application/json") {
  const headers = {};
  if (method !== "GET") headers["X-CSRF-Token"] = token;
  if (body !== undefined) headers["Content-Type"] = type;
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined || typeof body === "string" ? body : JSON.stringify(body) });
  } catch {
    throw new Failure({ detail: "The console does not answer. Check that it runs: muster status", code: "away" }, 0);
  }
  const text = await response.text();
  let document = null;
  try { document = text ? JSON.parse(text) : null; } catch { document = { detail: text.slice(0, 300) }; }
  if (!response.ok) {
    if (response.status === 401 && path !== "api/v1/console/session") lost();
    throw new Failure(document || {}, response.status);
  }
  return { document, response };
}

// A path with names in it, each encoded as a whole: at`api/v1/rooms/${name}`.
export function at(parts, ...names) {
  return parts.reduce((path, part, index) => path + part + (index < names.length ? encodeURIComponent(names[index]) : ""), "");
}

export function query(words) {
  const known = Object.entries(words).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return known.length ? `?${new URLSearchParams(known)}` : "";
}
