// The layers with their partitions, a growth as it proceeds, and the doubling of a layer.
import { html } from "./dom.js";
import { age, count, plain, time } from "./figures.js";
import { Action, Badge, Command, Own } from "./parts.js";
import { ask, at } from "./server.js";
import { t } from "./texts.js";

const STEPS = ["prepare", "switched", "final"];

export function Layers({ layers, growths, changed }) {
  return html`<section><h2>${t("Layers")}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("Layers")}><table><thead><tr><th scope="col">${t("layer")}</th><th scope="col" class="num">${t("partitions")}</th><th scope="col" class="num">${t("nodes")}</th><th scope="col">${t("state")}</th><th scope="col">${t("actions")}</th></tr></thead>
      <tbody>${layers.map((each) => html`<tr key=${each.layer}><td><${Own} text=${each.layer} /></td><td class="num">${count(each.partitions)}</td><td class="num">${count(each.nodes)}</td>
        <td>${each.growth ? html`<${Badge} level="warn" text=${t("grows to {to} partitions", each.growth)} />` : each.due.length ? html`<${Badge} level="warn" text=${t("growth is due")} /> <${Own} text=${each.due.join("; ")} />` : html`<${Badge} level="ok" text=${t("stands")} />`}</td>
        <td><${Double} layer=${each} changed=${changed} /></td></tr>`)}</tbody></table></div>
    ${layers.filter((each) => each.growth || growths.some((growth) => growth.layer === each.layer)).map((each) => html`<${Progress} key=${each.layer} layer=${each} growth=${growths.find((growth) => growth.layer === each.layer)} />`)}
    <${Command} words="muster cluster grow broker --to 2" /></section>`;
}

function Double({ layer, changed }) {
  if (!layer.grows) return html`<span class="dim">${layer.growth ? "" : html`<code>${plain(`muster cluster grow ${layer.layer.replace("/", " --cluster ")}`)}</code>`}</span>`;
  const to = 2 * layer.partitions;
  const replicas = Math.max(1, Math.ceil(layer.nodes / layer.partitions));
  const run = async () => {
    await ask("POST", at`api/v1/console/topology/layers/${layer.layer}`, { to });
    return t("The growth has begun. Its steps are shown below the table.");
  };
  return html`<${Action} title=${t("Double {layer}", { layer: layer.layer })} label=${t("Double")} danger run=${run} done=${changed}
    about=${t("{layer} goes from {from} to {to} partitions. {more} more nodes start on this machine. Half of the rooms move to the new partitions while messages flow. The number of partitions cannot be reduced later.", { layer: layer.layer, from: layer.partitions, to, more: (to - layer.partitions) * replicas })} />`;
}

function Progress({ layer, growth }) {
  const names = { prepare: t("prepare: the new nodes start"), switched: t("switched: rooms move"), final: t("final: all nodes use the new partitions") };
  const step = layer.growth ? layer.growth.step : "";
  const ended = growth && growth.code !== null;
  return html`<div aria-live="polite"><h3>${t("Growth of {layer}", { layer: layer.layer })}</h3>
    <ol class="steps">${STEPS.map((each) => html`<li aria-current=${each === step ? "step" : undefined}>${names[each]}${each === step && layer.step_s !== null ? ` (${age(layer.step_s)})` : ""}</li>`)}</ol>
    ${ended && !layer.growth ? html`<p><${Badge} level=${growth.code === 0 ? "ok" : "fail"} text=${growth.code === 0 ? t("The growth is complete.") : t("The command ended with code {code}; its last line says why.", growth)} /></p>` : null}
    ${growth ? html`<div class="tail scroll" tabindex="0" role="region" aria-label=${t("Growth of {layer}", { layer: layer.layer })}><table><tbody>${growth.lines.map((line) => html`<tr><td>${time(line.at * 1000)}</td><td class="mono"><${Own} text=${line.text} /></td></tr>`)}</tbody></table></div>`
      : html`<p class="dim">${t("Another command leads this growth.")}</p>`}</div>`;
}
