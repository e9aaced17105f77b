// Logging in: sends the token once, and gets a cookie that scripts can't read.
import { post } from "../api.js";
import { html, useState } from "../lib.js";
import { Field, Heading, Trouble } from "../parts.js";

export const LOGGED_IN = "krappy-logged-in"; // shows the button that logs out; scripts can't see the cookie itself

export function Login({ done }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await post("/login", { token });
      localStorage.setItem(LOGGED_IN, "yes");
      done();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="card login" onSubmit=${submit}>
    <img src="favicon.svg" alt="" width="48" height="48" />
    <${Heading} title="Log in" />
    <${Field} label="Token" type="password" value=${token} onInput=${(event) => setToken(event.target.value)} required autofocus
      hint="The broker's setting console_token. This browser keeps a cookie for twelve hours, not the token." />
    <${Trouble} error=${error} />
    <button type="submit" class="main">Log in</button>
  </form>`;
}
