// What a request did at a user's devices, and the form that ends their sessions.
import { html } from "./dom.js";
import { count, plain } from "./figures.js";
import { Action } from "./parts.js";
import { ask, at } from "./server.js";
import { t } from "./texts.js";

// One line for the outcomes of one user.
export function outcomes(said) {
  return said.error || said.devices.map((each) => `${each.device || t("a device")}: ${each.outcome}`).join(", ") || t("The user has no device online.");
}

// Without `user` the form asks for one. In a room, all sessions with which the user is a member end; that needs no presence.
export function EndSessions({ user, room }) {
  const title = user ? t("End sessions of {user}", { user: plain(user) }) : t("End a member's sessions");
  const run = async (filled) => {
    if (room && !filled.device) {
      const { ended } = await ask("DELETE", at`api/v1/rooms/${room}/members/${filled.user}`);
      return ended ? t("{count} sessions were ended.", { count: count(ended) }) : t("This user is no member of the room.");
    }
    const found = await ask("POST", "api/v1/presence/end", { users: [user || filled.user], ...(filled.device ? { device: filled.device } : {}) });
    return outcomes(found.users[0]);
  };
  const about = t("The clients do not come back by themselves. A program may open a new session; revoke the user to keep it out.");
  const whom = user ? [] : [{ name: "user", label: t("Number or name of a user"), required: true, autocomplete: "off" }];
  return html`<${Action} title=${title} label=${t("End sessions")} danger run=${run} about=${room ? `${about} ${t("Without a device, all sessions end with which the user is a member of this room.")}` : about}
    fields=${[...whom, { name: "device", label: t("Device; empty: all"), autocomplete: "off" }]} />`;
}
