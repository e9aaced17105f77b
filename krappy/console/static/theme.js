// Before anything is drawn, so that a page never flashes in the other theme. Without a choice the system's counts.
(() => {
  const chosen = localStorage.getItem("krappy-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
