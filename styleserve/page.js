// What Gradio's widgets lack: names and keys for all people, and a slider that is always right.
() => {
  const STEP = 0.05;

  const nameExamples = () => {
    for (const button of document.querySelectorAll("button.gallery-item:not([aria-label])")) {
      const source = button.querySelector("img")?.src;
      if (source) {
        const file = source.split("/").pop().split(".")[0];
        button.setAttribute("aria-label", `Take the example photo ${file}`);
      }
    }
    for (const empty of document.querySelectorAll(".empty[aria-label]:not([role])")) {
      empty.setAttribute("role", "img");
    }
  };

  // Gradio 6.31 misses the end of a quick load now and then; the slider then knows no size.
  const measure = (image) => image.naturalWidth && image.dispatchEvent(new Event("load"));

  const drag = (handle, way) => {
    const frame = handle.parentElement.getBoundingClientRect();
    const box = (handle.querySelector(".icon-wrap") ?? handle).getBoundingClientRect();
    const from = box.left + box.width / 2;
    const to = Math.min(frame.right, Math.max(frame.left, from + way * STEP * frame.width));
    const clientY = box.top + box.height / 2;
    const fire = (target, type, clientX) => target.dispatchEvent(
      new MouseEvent(type, { bubbles: true, cancelable: true, view: window, clientX, clientY }));
    fire(handle, "mousedown", from);
    fire(window, "mousemove", to);
    fire(window, "mouseup", to);
    handle.setAttribute("aria-valuenow", Math.round((100 * (to - frame.left)) / frame.width));
  };

  const openSlider = () => {
    for (const handle of document.querySelectorAll("[data-testid=slider]:not([tabindex])")) {
      const role = { role: "slider", tabindex: 0, "aria-label": "How much of the photo is shown",
        "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 50 };
      for (const [name, value] of Object.entries(role)) handle.setAttribute(name, value);
      handle.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
        if (way) {
          event.preventDefault();
          handle.parentElement.querySelectorAll("img").forEach(measure);
          requestAnimationFrame(() => drag(handle, way));
        }
      });
    }
  };

  const settled = new WeakMap();
  const settleSlider = () => {
    for (const image of document.querySelectorAll("[data-testid=imageslider-image]")) {
      if (settled.get(image) === image.src) continue;
      settled.set(image, image.src);
      image.decode().then(() => measure(image), () => settled.delete(image));
    }
  };

  const mend = () => { nameExamples(); openSlider(); settleSlider(); };
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  mend();
}
