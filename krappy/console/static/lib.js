// What every page imports: Preact with htm's templates. Everything is rendered as text nodes and attributes.
import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { Fragment, render } from "./vendor/preact.js";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(h);
