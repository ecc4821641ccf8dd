// Texts in the reader's language. English texts are the keys of the catalogues.
const LANGUAGES = { en: "English", zh: "中文" };
const KEPT = "muster-language";
let catalogue = {};

export const languages = LANGUAGES;
export let language = "en";

export async function choose(wanted) {
  language = wanted in LANGUAGES ? wanted : "en";
  catalogue = language === "en" ? {} : await (await fetch(`assets/texts/${language}.json`)).json();
  document.documentElement.lang = language === "zh" ? "zh-Hans" : language;
}

export function keep(wanted) {
  localStorage.setItem(KEPT, wanted);
  return choose(wanted);
}

export function preferred() {
  const kept = localStorage.getItem(KEPT);
  return kept || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
}

// The text, with {name} replaced by values.
export function t(text, values = {}) {
  const found = catalogue[text] || text;
  return found.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
