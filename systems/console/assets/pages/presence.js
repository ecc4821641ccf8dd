// Who is online where, sites and shards, and a message to a user.
import { html, useEffect, useState } from "../dom.js";
import { Curve } from "../curve.js";
import { EndSessions, outcomes } from "../devices.js";
import { count, plain, time } from "../figures.js";
import { usePast } from "../live.js";
import { Action, Ask, Badge, Command, Failed, Own, useAsked } from "../parts.js";
import { ask, query } from "../server.js";
import { t } from "../texts.js";

export function Presence({ rest }) {
  const [user, set] = useState(rest[0] || "");
  return html`<h1>${t("Presence")}</h1>
    <section><h2>${t("A user")}</h2><${Ask} label=${t("Look up")} fields=${[{ name: "user", label: t("Number or name of a user"), value: user, required: true }]} submit=${(asked) => { set(asked.user); }} />
      ${user ? html`<${User} key=${user} user=${user} />` : html`<p class="empty">${t("Enter a user to see its devices as they come and go.")}</p>`}</section>
    <${Online} /><${Shards} />`;
}

function Online() {
  const past = usePast();
  return past ? html`<${Curve} title=${t("Devices online")} times=${past.at} series=${[{ label: t("devices"), values: past.online }]} show=${count} />` : html`<p class="empty">${t("Curves begin with the second reading.")}</p>`;
}

function User({ user }) {
  const [round, again] = useState(0);
  const [live, setLive] = useState("");
  const { value, error } = useAsked(async () => (await ask("POST", "api/v1/presence", { users: [user] })).users[0], [user, round]);
  useEffect(() => {
    const source = new EventSource(`api/v1/presence/changes${query({ users: user })}`);
    const changed = () => { setLive("ok"); again((was) => was + 1); };
    source.onopen = () => setLive("ok");
    source.onmessage = changed;
    source.addEventListener("state", changed);
    source.onerror = () => setLive("warn");
    return () => source.close();
  }, [user]);
  const send = async ({ data, device, expires }) => {
    const found = await ask("POST", "api/v1/send", { users: [user], data, expires: Number(expires), ...(device ? { device } : {}) });
    return outcomes(found.users[0]);
  };
  return html`<div><div class="row"><${Badge} level=${live || "warn"} text=${live === "ok" ? t("live") : t("connecting")} />
      <${Action} title=${t("Send to {user}", { user: plain(user) })} label=${t("Send")} strong run=${send} fields=${[{ name: "data", label: t("Message"), type: "textarea", required: true }, { name: "device", label: t("Device; empty: all"), autocomplete: "off" }, { name: "expires", label: t("Give up after, in seconds"), value: "5", type: "number" }]} />
      <${EndSessions} user=${user} /></div>
    <${Failed} error=${error} />
    ${value ? html`<p><${Badge} level=${value.online ? "ok" : "warn"} text=${value.online ? t("online") : t("offline")} /> <${Own} text=${user} />${value.last_seen ? html`, ${t("last seen {time}", { time: time(value.last_seen) })}` : null}</p>
      ${value.devices.length ? html`<table><thead><tr><th scope="col">${t("device")}</th><th scope="col">${t("gateway")}</th><th scope="col">${t("since")}</th></tr></thead><tbody>${value.devices.map((each) => html`<tr><td class="mono"><${Own} text=${each.device} /></td><td>${each.gateway}</td><td>${time(each.since)}</td></tr>`)}</tbody></table>` : null}` : null}
    <${Command} words=${`muster presence who ${user}`} /><${Command} words=${`muster presence end ${user}`} /></div>`;
}

function Shards() {
  const [round, again] = useState(0);
  const { value, error } = useAsked(() => ask("GET", "api/v1/presence/stats"), [round]);
  return html`<section><h2>${t("Sites and shards")}</h2><div class="row"><button type="button" onClick=${() => again((was) => was + 1)}>${t("Reload")}</button></div><${Failed} error=${error} />
    ${value ? html`<div class="scroll" tabindex="0" role="region" aria-label=${t("Sites and shards")}><table><thead><tr>${[t("site"), t("shard"), t("users"), t("devices"), t("gateways"), t("lag"), t("gaps"), t("questions"), t("full states")].map((each) => html`<th scope="col" class="num">${each}</th>`)}<th scope="col">${t("state")}</th></tr></thead>
      <tbody>${value.shards.map((each) => html`<tr><td class="num">${each.site}</td><td class="num">${each.shard} / ${each.shards}</td><td class="num">${count(each.users)}</td><td class="num">${count(each.devices)}</td>
        <td class="num">${each.gateways ? each.gateways.length : ""}</td><td class="num">${each.gateways ? count(Math.max(0, ...each.gateways.map((one) => one.lag))) : ""}</td><td class="num">${each.gateways ? count(each.gateways.reduce((sum, one) => sum + one.missing, 0)) : ""}</td>
        <td class="num">${count(each.asks)}</td><td class="num">${count(each.fulls)}</td><td><${Badge} level=${each.serving ? "ok" : "fail"} text=${each.serving ? t("serves") : t("refuses: {why}", { why: each.why })} /></td></tr>`)}</tbody></table></div>` : null}
    <${Command} words="muster presence stats" /></section>`;
}
