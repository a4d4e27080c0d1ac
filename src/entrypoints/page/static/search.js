// Searches while you type. Without this script, the form loads the page of results.
(() => {
  const input = document.querySelector("#q");
  const content = document.querySelector("#content");
  if (!input || !content || !window.fetch) return;
  const address = input.form.action;
  const original = [...content.childNodes];
  let latest = 0;
  let waiting;
  const show = async (text) => {
    const number = ++latest;
    if (!text.trim()) {
      content.replaceChildren(...original);
      return;
    }
    const response = await fetch(`${address}?${new URLSearchParams({ q: text, part: "results" })}`);
    if (number !== latest) return; // a later answer replaces this one
    if (response.redirected || !response.ok) {
      location.assign(`${address}?` + new URLSearchParams({ q: text })); // to the sign-in, or to the error
      return;
    }
    const found = new DOMParser().parseFromString(await response.text(), "text/html");
    if (number !== latest) return;
    content.replaceChildren(...found.body.childNodes);
    if (content.querySelector("[data-again]")) waiting = setTimeout(() => show(text).catch(() => {}), 1000);
  };
  // The server reads the names of a large catalog before the first search.
  input.addEventListener("focus", () => fetch(`${address}?part=results`).catch(() => {}), { once: true });
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => show(input.value).catch(() => {}), 80);
  });
})();
