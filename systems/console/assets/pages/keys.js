// API keys, and who did what when.
import { html } from "../dom.js";
import { plain, time } from "../figures.js";
import { Action, Badge, Command, Own, Table } from "../parts.js";
import { ask, at, query } from "../server.js";
import { t } from "../texts.js";
import { useState } from "../dom.js";

export function Keys() {
  const [round, again] = useState(0);
  const changed = () => again((was) => was + 1);
  const create = async ({ name, scopes }) => {
    const made = await ask("POST", "api/v1/console/keys", { name, scopes: scopes.split(/\s+/).filter(Boolean) });
    return html`<p>${t("This is the only time that the key is shown:")}</p><p class="mono" data-secret>${made.key}</p>`;
  };
  const keys = [
    { key: "name", title: t("name"), show: (row) => html`<${Own} text=${row.name} />` },
    { key: "id", title: t("id"), show: (row) => html`<span class="mono">${row.id}</span>` },
    { key: "scopes", title: t("scopes"), show: (row) => html`<span class="mono"><${Own} text=${row.scopes.join(" ")} /></span>` },
    { key: "created", title: t("created"), show: (row) => time(row.created * 1000) },
    { key: "used", title: t("last used"), show: (row) => (row.used ? time(row.used * 1000) : t("never")) },
    { key: "act", title: t("actions"), show: (row) => html`<${Action} title=${t("Revoke {name}", { name: row.name })} label=${t("Revoke")} danger done=${changed}
        about=${t("Programs with this key are refused within two seconds, and its streams end.")} run=${async () => { await ask("DELETE", at`api/v1/console/keys/${row.name}`); }} />` }];
  const audit = [
    { key: "at", title: t("time"), show: (row) => time(row.at * 1000) },
    { key: "user", title: t("user"), show: (row) => html`<${Own} text=${row.user} />` },
    { key: "role", title: t("role"), show: (row) => t(row.role) },
    { key: "address", title: t("from") },
    { key: "action", title: t("action"), show: (row) => html`<span class="mono"><${Own} text=${row.action} /></span>` },
    { key: "detail", title: t("detail"), show: (row) => html`<${Own} text=${row.detail} />` },
    { key: "status", title: t("result"), show: (row) => html`<${Badge} level=${row.status === 0 ? "warn" : row.status < 400 ? "ok" : "fail"} text=${row.status === 0 ? t("cut off") : row.status < 400 ? t("done") : t("refused: {status}", row)} />` }];
  return html`<h1>${t("Keys and audit")}</h1>
    <section><h2>${t("API keys")}</h2>
      <div class="row"><${Action} title=${t("Create a key")} strong done=${changed} run=${create} fields=${[
        { name: "name", label: t("Name"), required: true, autocomplete: "off" },
        { name: "scopes", label: t("Scopes, with spaces between"), hint: "read:* publish:sports:*", required: true, autocomplete: "off" }]} /></div>
      <${Table} name=${t("API keys")} search keys=${[round]} columns=${keys} empty=${t("There is no key yet. Create one, or: muster key create NAME --scope 'read:*'")}
        load=${({ search, offset, limit }) => ask("GET", `api/v1/console/keys${query({ search, offset, limit })}`)} />
      <${Command} words="muster key ls" /></section>
    <section><h2>${t("Audit log")}</h2>
      <${Table} name=${t("Audit log")} search keys=${[round]} columns=${audit} empty=${t("Nothing was done yet.")}
        load=${({ search, offset, limit }) => ask("GET", `api/v1/console/audit${query({ search, offset, limit })}`)} />
      <${Command} words="muster console audit" /></section>`;
}
