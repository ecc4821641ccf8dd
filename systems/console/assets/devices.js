// What a request did at a user's devices, and the form that ends their sessions.
import { html } from "./dom.js";
import { plain } from "./figures.js";
import { Action } from "./parts.js";
import { ask } from "./server.js";
import { t } from "./texts.js";

// One line for the outcomes of one user.
export function outcomes(said) {
  return said.error || said.devices.map((each) => `${each.device || t("a device")}: ${each.outcome}`).join(", ") || t("The user has no device online.");
}

// Without `user` the form asks for one.
export function EndSessions({ user }) {
  const title = user ? t("End sessions of {user}", { user: plain(user) }) : t("End a member's sessions");
  const run = async (filled) => {
    const found = await ask("POST", "api/v1/presence/end", { users: [user || filled.user], ...(filled.device ? { device: filled.device } : {}) });
    return outcomes(found.users[0]);
  };
  const whom = user ? [] : [{ name: "user", label: t("Number or name of a user"), required: true, autocomplete: "off" }];
  return html`<${Action} title=${title} label=${t("End sessions")} danger run=${run} about=${t("The clients do not come back by themselves. A program may open a new session; revoke the user to keep it out.")}
    fields=${[...whom, { name: "device", label: t("Device; empty: all"), autocomplete: "off" }]} />`;
}
