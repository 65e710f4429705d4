// Server-sent events over fetch: EventSource cannot send the key that a server may ask for.

const KEY = "twp-api-key";

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function rememberKey(value) {
  sessionStorage.setItem(KEY, value);
}

export function headers() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

/** Calls `on.past(looks)`, `on.look(look)`, `on.locked()` and `on.lost(reason)`; reconnects by itself. */
export async function follow(url, on) {
  let pause = 1000;
  for (;;) {
    let reason = "the server closed the connection";
    try {
      const answer = await fetch(url, { headers: headers(), cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) {
        on.locked();
        return;
      }
      if (!answer.ok) throw new Error(await words(answer));
      await read(answer.body.getReader(), (name, data) => {
        if (name === "error") {
          reason = data.error;
          return;
        }
        pause = 1000;
        on[name]?.(data);
      });
    } catch (error) {
      reason = error instanceof TypeError ? "the server cannot be reached" : error.message;
    }
    on.lost(reason);
    await new Promise((go) => setTimeout(go, pause));
    pause = Math.min(2 * pause, 15000);
  }
}

async function words(answer) {
  try {
    return (await answer.json()).error ?? `HTTP ${answer.status}`;
  } catch {
    return `HTTP ${answer.status}`;
  }
}

async function read(reader, take) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = text.slice(0, end);
      text = text.slice(end + 2);
      const name = /^event: (\w+)$/m.exec(event);
      const data = /^data: (.*)$/m.exec(event);
      if (name && data) take(name[1], JSON.parse(data[1]));
    }
  }
}
