// The findings of `muster doctor`, with the command that mends each.
import { html, useState } from "../dom.js";
import { plain, time } from "../figures.js";
import { Action, Badge, Command, Failed, Own, useAsked } from "../parts.js";
import { ask } from "../server.js";
import { t } from "../texts.js";

export function Doctor() {
  const asked = useAsked(() => ask("GET", "api/v1/console/doctor"), []);
  const [newer, set] = useState(null);
  const report = newer || asked.value;
  const again = async () => { const found = await ask("POST", "api/v1/console/doctor"); set(found); return t("Examined at {time}.", { time: time(found.at * 1000) }); };
  return html`<h1>${t("Doctor")}</h1><${Failed} error=${asked.error} />
    <section><div class="row"><${Action} title=${t("Run again")} about=${t("Examines this machine, the configuration and the instance. It takes a few seconds.")} run=${again} strong />
      ${report ? html`<span role="status">${t("{failures} fail, {warnings} warn, as of {time}", { ...report, time: time(report.at * 1000) })}</span>` : html`<span role="status">${t("Loading …")}</span>`}</div>
      ${report ? html`<div class="scroll" tabindex="0" role="region" aria-label=${t("Findings")}><table><thead><tr><th scope="col">${t("level")}</th><th scope="col">${t("check")}</th><th scope="col">${t("finding")}</th><th scope="col">${t("to mend it")}</th></tr></thead>
        <tbody>${[...report.findings].sort((a, b) => "fail warn ok".indexOf(a.level) - "fail warn ok".indexOf(b.level)).map((each) => html`<tr><td><${Badge} level=${each.level} text=${{ ok: t("good"), warn: t("warns"), fail: t("fails") }[each.level]} /></td>
          <td>${plain(each.check)}</td><td><${Own} text=${each.text} /></td><td class="mono"><${Own} text=${each.mend} /></td></tr>`)}</tbody></table></div>` : null}
      <${Command} words="muster doctor" /></section>`;
}
