// Runs before anything is drawn, so that a page never flashes in the other theme. Default: the system's theme.
(() => {
  const chosen = localStorage.getItem("krappy-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
