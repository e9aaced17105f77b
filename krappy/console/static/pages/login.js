// Logging in: sends the password, the token, or what the identity provider has given, once, and gets a cookie that scripts
// can't read.
import { Problem, get, post } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { Field, Heading, Trouble } from "../parts.js";

export const LOGGED_IN = "krappy-logged-in"; // shows the button that logs out; scripts can't see the cookie itself
const PLACE = "krappy-place"; // the page where the visitor was before he went to the identity provider

/** The code and the state with which the identity provider has sent the browser back; null: it has not. They are given once: they
    are removed from the address. */
export function takeReturned() {
  const query = new URLSearchParams(location.search);
  if (!query.has("state")) return null;
  history.replaceState(null, "", location.pathname + (sessionStorage.getItem(PLACE) ?? ""));
  return { code: query.get("code") ?? "", state: query.get("state") };
}

export function Login({ done, returned }) {
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [error, setError] = useState(null);
  const [ways, setWays] = useState({ password: true, token: true, provider: false });
  const send = async (body) => {
    try {
      await post("/login", body);
      localStorage.setItem(LOGGED_IN, "yes");
      done();
    } catch (failure) {
      setError(failure);
    }
  };
  useEffect(() => {
    get("/login").then(setWays, () => {});
    if (returned?.code) send(returned);
    else if (returned) setError(new Problem({ title: "Not logged in", detail: "The identity provider has not let you in." }));
  }, []);
  const submit = (event) => {
    event.preventDefault();
    send(user ? { user, password: secret } : { token: secret });
  };
  const leave = async () => {
    try {
      const { location: where } = await post("/login/provider");
      sessionStorage.setItem(PLACE, location.hash);
      location.assign(where);
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="card login" onSubmit=${submit}>
    <img src="favicon.svg" alt="" width="48" height="48" />
    <${Heading} title="Log in" />
    ${ways.provider && html`<button type="button" class="main" onClick=${leave}>Log in with the identity provider</button>`}
    ${(ways.password || ways.token) && html`
      <${Field} label="User" value=${user} onInput=${(event) => setUser(event.target.value)} autocomplete="username" autofocus
        hint="Leave it empty to log in with the broker's console_token." />
      <${Field} label="Password or token" type="password" value=${secret} onInput=${(event) => setSecret(event.target.value)} required
        autocomplete="current-password" hint="This browser keeps a cookie for twelve hours, not what you write here." />`}
    <${Trouble} error=${error} />
    <button type="submit" class=${ways.provider ? "" : "main"}>Log in</button>
  </form>`;
}
