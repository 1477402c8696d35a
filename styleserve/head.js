// Gradio shows "Loading..." for ever when a part of its page does not come.
addEventListener("unhandledrejection", ({ reason }) => {
  if (!/module|preload/i.test(reason?.message) || document.getElementById("incomplete")) return;
  const told = document.createElement("p");
  Object.assign(told, { id: "incomplete", role: "alert" });
  told.textContent = "A part of this page could not be loaded: reload it to try again.";
  document.body.prepend(told);
});
