// The frame around the pages: navigation, theme, login; and which page is shown.
import { LOGGED_OUT, ask, useAnswer } from "./api.js";
import { EventPage } from "./event.js";
import { html, render, useEffect, useRef, useState } from "./lib.js";
import { Cluster } from "./pages/cluster.js";
import { Connections } from "./pages/connections.js";
import { Group } from "./pages/group.js";
import { Groups } from "./pages/groups.js";
import { LOGGED_IN, Login, takeReturned } from "./pages/login.js";
import { Overview } from "./pages/overview.js";
import { Topic } from "./pages/topic.js";
import { Topics } from "./pages/topics.js";
import { Dialog, Empty, Heading, Remarks } from "./parts.js";
import { link, useRoute } from "./routes.js";

const PLACES = [["", "Overview", "o"], ["topics", "Topics", "t"], ["groups", "Groups", "g"], ["cluster", "Cluster", "l"], ["connections", "Connections", "c"]];

function page({ parts, query }) {
  const [place = "", name, ...rest] = parts;
  if (place === "") return html`<${Overview} />`;
  if (place === "cluster") return html`<${Cluster} />`;
  if (place === "connections") return html`<${Connections} />`;
  if (place === "topics" && name === undefined) return html`<${Topics} query=${query} />`;
  if (place === "groups") return name === undefined ? html`<${Groups} query=${query} />` : html`<${Group} key=${name} name=${name} />`;
  if (place === "topics" && rest[0] === "events" && rest.length === 3) {
    return html`<${EventPage} topic=${name} partition=${rest[1]} offset=${rest[2]} />`;
  }
  if (place === "topics") return html`<${Topic} key=${name} name=${name} tab=${rest[0] ?? "stream"} query=${query} />`;
  return html`<${Heading} title="Nothing here" /><${Empty} title="There is no such page."><a href="#/">To the overview</a><//>`;
}

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function Theme() {
  const [dark, setDark] = useState(isDark);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(isDark());
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  const turn = () => {
    const theme = dark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("krappy-theme", theme);
    setDark(!dark);
  };
  return html`<button type="button" class="plain" aria-pressed=${dark} onClick=${turn} title="Switch between light and dark">
    <span aria-hidden="true">${dark ? "☾" : "☀"}</span><span class="hide-narrow"> Dark</span><span class="unseen">theme</span>
  </button>`;
}

function Keys({ close }) {
  const keys = [["/", "search field"], ["g o", "overview"], ["g t", "topics"], ["g g", "groups"], ["g l", "cluster"], ["g c", "connections"], ["?", "this list"], ["Esc", "close the dialog"]];
  return html`<${Dialog} title="Keys" close=${close}>
    <dl class="facts keys">${keys.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
  <//>`;
}

/** Keys that work everywhere but in fields and dialogs. */
function useKeys(help) {
  useEffect(() => {
    let before = "";
    const pressed = (event) => {
      const typing = event.target.closest("input, textarea, select, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const place = before === "g" && PLACES.find(([, , key]) => key === event.key);
      if (place) {
        location.hash = link(place[0] ? [place[0]] : []);
        before = "";
        return;
      }
      before = event.key;
      if (event.key === "?") help();
      if (event.key === "/") {
        const search = document.querySelector("main input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
          search.select();
        }
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function App() {
  const [returned, setReturned] = useState(takeReturned); // from the identity provider
  const route = useRoute();
  const [out, setOut] = useState(returned !== null);
  const [keys, setKeys] = useState(false);
  const main = useRef(null);
  const path = route.parts.join("/");
  const seen = useRef(path);
  useKeys(() => setKeys(true));
  useEffect(() => {
    const left = () => setOut(true);
    addEventListener(LOGGED_OUT, left);
    return () => removeEventListener(LOGGED_OUT, left);
  }, []);
  useEffect(() => {
    if (seen.current === path) return;
    seen.current = path;
    scrollTo(0, 0);
    const target = main.current?.querySelector("h1");
    target?.focus({ preventScroll: true }); // so that screen readers read the new page's heading
  }, [path]);
  const { data: cluster } = useAnswer(out ? null : "/cluster");
  const leave = async () => {
    await ask("POST", "/logout").catch(() => {});
    localStorage.removeItem(LOGGED_IN);
    setOut(true);
  };
  if (out) return html`<main class="alone"><${Login} returned=${returned} done=${() => (setReturned(null), setOut(false))} /></main><${Remarks} />`;
  const place = route.parts[0] ?? "";
  return html`<a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="favicon.svg" alt="" width="24" height="24" /><span>Krappy</span></a>
      <nav aria-label="Pages">
        ${PLACES.map(([name, title]) => html`<a key=${name} href=${link(name ? [name] : [])} aria-current=${name === place ? "page" : undefined}>${title}</a>`)}
      </nav>
      <div class="tools">
        <${Theme} />
        <button type="button" class="plain hide-narrow" onClick=${() => setKeys(true)}>Keys</button>
        ${localStorage.getItem(LOGGED_IN) && html`<button type="button" class="plain" onClick=${leave}>Log out</button>`}
        <span class="version faint">${cluster ? `broker ${cluster.broker_id} · ${cluster.version}` : ""}</span>
      </div>
    </header>
    <main id="main" tabindex="-1" ref=${main}>${page(route)}</main>
    <${Remarks} />
    ${keys && html`<${Keys} close=${() => setKeys(false)} />`}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
