// Figures, times and strangers' texts as a reader sees them.
import { language, t } from "./texts.js";

// Control and direction characters become visible: text of strangers cannot turn other text around.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function plain(text) {
  return String(text).replace(HIDDEN, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
}

export function count(value, digits = 0) {
  if (value === null || value === undefined) return "";
  return form(digits, () => new Intl.NumberFormat(language, { maximumFractionDigits: digits })).format(value);
}

export function rate(value) {
  return value === null || value === undefined ? "" : `${count(value, value < 10 ? 1 : 0)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${count(value, value < 10 && at ? 1 : 0)} ${units[at]}`;
}

export function percent(value) {
  return value === null || value === undefined ? "" : `${count(100 * value, 1)} %`;
}

export function ms(value) {
  return value === null || value === undefined ? "" : `${count(value, value < 10 ? 1 : 0)} ms`;
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

// A time in ms since 1970, local, with the zone.
export function time(at) {
  return at ? form("time", () => new Intl.DateTimeFormat(language, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23", timeZoneName: "short",
  })).format(at) : "";
}

// To make a formatter takes a hundred times as long as to use it.
const forms = new Map();

function form(name, make) {
  const key = `${language} ${name}`;
  if (!forms.has(key)) forms.set(key, make());
  return forms.get(key);
}

// What limits a node, in the reader's language.
export function limit(found) {
  if (!found) return "";
  const { what, used, most, counter } = found;
  const texts = {
    cpu: () => t("CPU: {share} of a core", { share: percent(used) }),
    cores: () => t("cores: its loop waited {time} for one", { time: ms(1000 * used) }),
    memory: () => t("memory: {used} of {most}", { used: bytes(used), most: bytes(most) }),
    files: () => t("open files: {used} of {most}", { used: count(used), most: count(most) }),
    sockets: () => t("a socket's queue is full: {counter} {rate}", { counter: plain(counter), rate: rate(used) }),
    tables: () => t("a table or rate is at its limit: {counter} {rate}", { counter: plain(counter), rate: rate(used) }),
  };
  return what in texts ? texts[what]() : t("nothing");
}
