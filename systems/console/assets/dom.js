// The parts of the libraries that pages use, in one place.
import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(h);
