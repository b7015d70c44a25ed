// Before the first paint: the colours that the address asks for, so that nothing flashes.
(() => {
  const theme = new URLSearchParams(location.search).get("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  document.documentElement.classList.add("scripted");
})();
