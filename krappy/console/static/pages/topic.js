// One topic: its stream, its table, publishing, its partitions and its settings.
import { topicPath, useAnswer } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { html } from "../lib.js";
import { Empty, Heading, Nothing, Tabs, Trouble, Waiting } from "../parts.js";
import { link } from "../routes.js";
import { History } from "./history.js";
import { Partitions } from "./partitions.js";
import { Publish } from "./publish.js";
import { Settings } from "./settings.js";
import { Stream } from "./stream.js";
import { Table } from "./table.js";

const TABS = [["stream", "Stream"], ["table", "Table"], ["publish", "Publish"], ["partitions", "Partitions"], ["settings", "Settings"]];
const PAGES = { stream: Stream, table: Table, history: History, publish: Publish, partitions: Partitions, settings: Settings };

export function Topic({ name, tab, query }) {
  const { data, error, again } = useAnswer(topicPath(name), { limit: 100 }, { every: 3000 });
  if (error?.code === "UNKNOWN_TOPIC") return html`<${Nothing} title=${name} what="topic" all=${["topics"]} />`;
  const Page = PAGES[tab];
  const tabs = TABS.map(([each, title]) => [each, title, link(["topics", name, each])]);
  const told = data?.summary;
  const facts = told
    ? [plural(told.events, "event"), bytes(told.size), plural(told.partitions, "partition"), told.cleanup_policy, told.view ? (told.view_lag ? `table ${count(told.view_lag)} behind` : "table up to date") : "no table"]
    : [];
  return html`<${Heading} title=${name}><p class="faint summary">${facts.join(" · ") || " "}</p><//>
    <${Tabs} label=${`Topic ${name}`} tabs=${tabs} current=${tab === "history" ? "table" : tab} />
    ${error && html`<${Trouble} error=${error} again=${again} />`}
    ${!data && !error && html`<${Waiting} />`}
    ${data && (Page ? html`<${Page} key=${tab} topic=${data} query=${query} again=${again} />` : html`<${Empty} title="There is no such page." />`)}`;
}
