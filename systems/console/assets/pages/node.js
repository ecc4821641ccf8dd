// One node: its figures, its links, its state as it tells it.
import { html } from "../dom.js";
import { age, bytes, count, limit, ms, percent, plain } from "../figures.js";
import { useLive } from "../live.js";
import { Badge, Command, Failed, Own, useAsked } from "../parts.js";
import { ask, at } from "../server.js";
import { t } from "../texts.js";

export function Node({ rest }) {
  const [name] = rest;
  const { sample } = useLive();
  const { value, error } = useAsked(() => ask("GET", at`api/v1/console/nodes/${name || ""}`), [name, sample && sample.at]);
  if (!value) return html`<h1><${Own} text=${name || ""} /></h1><${Failed} error=${error} />`;
  const { row, links } = value;
  const figures = [[t("role"), row.role], [t("version"), row.version], [t("age"), age(row.age_s)], [t("CPU"), percent(row.cpu)], [t("memory"), bytes(row.rss_bytes)], [t("late"), ms(row.lag_ms)], [t("limited by"), limit(row.limit)]];
  return html`<h1><${Own} text=${row.name} /> <${Badge} level=${row.state === "ready" ? "ok" : "fail"} text=${plain(row.state)} /></h1>
    <${Failed} error=${value.error} />
    <div class="tiles">${figures.map(([title, text]) => html`<div class="tile"><span>${title}</span><b>${plain(text)}</b></div>`)}</div>
    <section><h2>${t("Links")}</h2>${links.length ? html`<${Links} links=${links} />` : html`<p class="empty">${t("This node has no links.")}</p>`}<${Command} words=${`muster links --of ${row.name}`} /></section>
    <section><h2>${t("State")}</h2><pre tabindex="0">${plain(JSON.stringify(value.status, null, 2))}</pre></section>
    <section><h2>${t("Figures")}</h2><div class="scroll" tabindex="0" role="region" aria-label=${t("Figures")}><table><tbody>${Object.entries(value.metrics).map(([metric, figure]) => html`<tr><th scope="row" class="mono">${plain(metric)}</th><td class="num">${count(figure, 3)}</td></tr>`)}</tbody></table></div></section>`;
}

export function Links({ links }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${t("Links")}><table><thead><tr><th scope="col">${t("from")}</th><th scope="col">${t("to")}</th><th scope="col">${t("state")}</th><th scope="col" class="num">${t("round trip")}</th><th scope="col" class="num">${t("loss")}</th><th scope="col" class="num">${t("available")}</th></tr></thead>
    <tbody>${links.map((link) => html`<tr><td><${Own} text=${link.sender} /></td><td><${Own} text=${link.receiver} /></td>
      <td><${Badge} level=${!link.up ? "fail" : link.beyond.length ? "warn" : "ok"} text=${!link.up ? t("down") : link.beyond.length ? t("beyond: {limits}", { limits: link.beyond.join(", ") }) : t("up")} /></td>
      <td class="num">${ms(link.rtt_ms)}</td><td class="num">${percent(link.loss)}</td><td class="num">${percent(link.availability)}</td></tr>`)}</tbody></table></div>`;
}
