// Logging in: sends the password, or the token, once, and gets a cookie that scripts can't read.
import { post } from "../api.js";
import { html, useState } from "../lib.js";
import { Field, Heading, Trouble } from "../parts.js";

export const LOGGED_IN = "krappy-logged-in"; // shows the button that logs out; scripts can't see the cookie itself

export function Login({ done }) {
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await post("/login", user ? { user, password: secret } : { token: secret });
      localStorage.setItem(LOGGED_IN, "yes");
      done();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="card login" onSubmit=${submit}>
    <img src="favicon.svg" alt="" width="48" height="48" />
    <${Heading} title="Log in" />
    <${Field} label="User" value=${user} onInput=${(event) => setUser(event.target.value)} autocomplete="username" autofocus
      hint="Leave it empty to log in with the broker's console_token." />
    <${Field} label="Password or token" type="password" value=${secret} onInput=${(event) => setSecret(event.target.value)} required
      autocomplete="current-password" hint="This browser keeps a cookie for twelve hours, not what you write here." />
    <${Trouble} error=${error} />
    <button type="submit" class="main">Log in</button>
  </form>`;
}
