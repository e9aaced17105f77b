// The small parts that pages are made of.
import { preview } from "./bytes.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { link } from "./routes.js";

let tell = () => {};

/** Shows a remark that disappears by itself, and that screen readers speak. */
export const say = (text, kind = "good") => tell({ text, kind });

export function Remarks() {
  const [remark, setRemark] = useState(null);
  tell = setRemark;
  useEffect(() => {
    if (!remark) return undefined;
    const timer = setTimeout(() => setRemark(null), 5000);
    return () => clearTimeout(timer);
  }, [remark]);
  return html`<div class="remarks" role="status">${remark && html`<p class=${"remark " + remark.kind}>${remark.text}</p>`}</div>`;
}

export function Trouble({ error, again }) {
  if (!error) return null;
  return html`<div class="trouble" role="alert">
    <p><strong>${error.title ?? "Error"}.</strong> ${error.message}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

export const Empty = ({ title, children }) => html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;

/** The page of a thing that does not exist (any more): there is nothing to do with it. `all`: the page that lists all of its kind. */
export const Nothing = ({ title, what, all }) =>
  html`<${Heading} title=${title} /><${Empty} title=${`There is no ${what} of this name.`}><p><a href=${link(all)}>All ${what}s</a></p><//>`;

/** A placeholder until an answer comes, about as high as the answer will be. */
export const Waiting = ({ rows = 6 }) =>
  html`<div class="waiting" aria-busy="true" aria-label="Loading">${Array.from({ length: rows }, (_, at) => html`<div key=${at}></div>`)}</div>`;

/** A table that scrolls by itself if it is too wide. `label` names it for screen readers. */
export function Grid({ label, head, children, kind = "" }) {
  return html`<div class=${"grid " + kind} role="region" aria-label=${label} tabindex="0">
    <table>
      <thead>
        <tr>${head.map((each, at) => {
          const [name, style] = Array.isArray(each) ? each : [each, ""];
          return html`<th key=${at} scope="col" class=${style}>${name}</th>`;
        })}</tr>
      </thead>
      <tbody>${children}</tbody>
    </table>
  </div>`;
}

let ids = 0;
export function useId() {
  const [id] = useState(() => `f${(ids += 1)}`);
  return id;
}

/** A labelled input. `hint` is shown below it, and screen readers read it with the field. */
export function Field({ label, hint, as = "input", children, class: style = "", ...rest }) {
  const id = useId();
  return html`<div class=${"field " + style}>
    <label for=${id}>${label}</label>
    ${as === "select"
      ? html`<select id=${id} ...${rest}>${children}</select>`
      : as === "textarea"
        ? html`<textarea id=${id} aria-describedby=${hint && id + "h"} ...${rest}></textarea>`
        : html`<input id=${id} aria-describedby=${hint && id + "h"} autocomplete="off" spellcheck="false" ...${rest} />`}
    ${hint && html`<p class="hint" id=${id + "h"}>${hint}</p>`}
  </div>`;
}

export function Check({ label, ...rest }) {
  return html`<label class="check"><input type="checkbox" ...${rest} /> ${label}</label>`;
}

/** `side`: the dialog is at the right, over the page's full height. */
export function Dialog({ title, close, children, side = false }) {
  const ref = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = ref.current;
    dialog.showModal();
    return () => {
      gone.current = true;
      dialog.close(); // first, since nothing outside can take the focus while it is open
      if (before?.isConnected) before.focus();
    };
  }, []);
  const gone = useRef(false);
  const outside = (event) => event.target === ref.current && close();
  return html`<dialog ref=${ref} class=${side ? "side" : ""} aria-labelledby=${id} onClose=${() => gone.current || close()} onMouseDown=${outside}>
    <div class="dialog">
      <header>
        <h2 id=${id}>${title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick=${close}>✕</button>
      </header>
      ${children}
    </div>
  </dialog>`;
}

/** Asks for the name of what is to be deleted. `act` returns a promise; its failure is shown here. */
export function ConfirmByName({ title, name, what, verb, act, close, children }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await act(typed);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} close=${close}>
    <form onSubmit=${submit}>
      ${children}
      <${Field} label=${`To confirm, type the name of the ${what}: ${name}`} value=${typed} autofocus
        onInput=${(event) => setTyped(event.target.value)} />
      <${Trouble} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class="danger" disabled=${typed !== name || busy}>${verb}</button>
      </div>
    </form>
  <//>`;
}

export function Copy({ text, label = "Copy" }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("The browser does not let this page copy: select the text instead", "bad");
    }
  };
  return html`<button type="button" class="small" onClick=${copy}>${label}</button>`;
}

export const Command = ({ label, text }) => html`<div class="command">
  <code tabindex="0" aria-label=${label}>${text}</code>
  <${Copy} text=${text} label="Copy command" />
</div>`;

/** A key or value on one line. */
export function Bytes({ shown, none = "none" }) {
  if (shown === null || shown === undefined) return html`<span class="faint">${none}</span>`;
  if (shown.size === 0) return html`<span class="faint">empty</span>`;
  const kind = shown.as === "base64" ? "bytes binary" : "bytes";
  return html`<bdi class=${kind}>${preview(shown)}</bdi>${shown.as === "base64" && html`<span class="tag">bytes</span>`}`;
}

/** Links beside each other; `current` is the name of the page that is shown. */
export const Tabs = ({ label, tabs, current }) => html`<nav class="tabs" aria-label=${label}>
  ${tabs.map(([name, title, href]) => html`<a key=${name} href=${href} aria-current=${name === current ? "page" : undefined}>${title}</a>`)}
</nav>`;

/** A choice among few. */
export const Choice = ({ label, options, value, choose }) => html`<div class="choice" role="group" aria-label=${label}>
  ${options.map(([name, title]) => html`<button key=${name} type="button" aria-pressed=${name === value} onClick=${() => choose(name)}>${title}</button>`)}
</div>`;

export const Facts = ({ facts }) => html`<dl class="facts">
  ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

/** The page's heading; its title in the browser follows it. */
export function Heading({ title, children }) {
  useEffect(() => {
    document.title = title + " · Krappy";
  }, [title]);
  return html`<div class="heading"><h1 tabindex="-1"><bdi>${title}</bdi></h1>${children}</div>`;
}
