// Gradio shows "Loading..." for ever when a part of its page does not come.
{
  const told = document.createElement("p");
  Object.assign(told, { id: "incomplete", role: "alert" });
  told.textContent = "A part of this page has not come: reload it if that stays so.";
  const tell = () => document.body.prepend(told);

  addEventListener("unhandledrejection", ({ reason }) => {
    if (/module|preload/i.test(reason?.message)) tell();
  });
  // The first part may have failed before this was here.
  setTimeout(() => document.getElementById("desk") || tell(), 15_000);
}
