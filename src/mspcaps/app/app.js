document.addEventListener("mouseover", (event) => {
  const name = event.target.closest?.("#model input");
  if (name) name.title = name.value; // a long name is cut off on the page
});

// The three sources of pictures. Each calls mspcaps.show(text, source), and Gradio sends the picture to the server.
window.mspcaps = {
  picture: "",
  source: "",

  show(text, source, trigger) {
    this.picture = text;
    this.source = source;
    for (const button of document.querySelectorAll(".samples button")) {
      button.setAttribute("aria-pressed", String(source === "sample" && button.dataset.picture === text));
    }
    trigger("input");
  },

  samples(element, trigger, watch) {
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-picture]");
      if (button) this.show(button.dataset.picture, "sample", trigger);
    });
    const start = () => {
      const buttons = [...element.querySelectorAll("button[data-picture]")];
      if (this.source === "" || this.source === "sample") {
        const chosen = buttons.find((button) => button.dataset.picture === this.picture) ?? buttons[0];
        if (chosen) this.show(chosen.dataset.picture, "sample", trigger);
        else this.show("", "", trigger);
      } else {
        trigger("input"); // another model, the same picture
      }
    };
    watch("value", start);
    start();
  },

  upload(element, trigger) {
    const zone = element.querySelector(".zone"), input = element.querySelector("input"), note = element.querySelector(".error");
    const refuse = (why) => {
      note.textContent = why;
      this.show("", "upload", trigger); // the previous answer is about another picture
    };
    const send = async (file) => {
      note.textContent = "";
      if (!file) return;
      if (file.size > limits.bytes) {
        return refuse(`The file has ${(file.size / 1e6).toFixed(1)} MB, but the limit is ${limits.bytes / 1e6} MB.`);
      }
      zone.classList.add("busy");
      try {
        const reply = await fetch("picture", { method: "POST", body: file });
        const { picture, error } = await reply.json();
        if (picture) this.show(picture, "upload", trigger);
        else refuse(error.charAt(0).toUpperCase() + error.slice(1) + ".");
      } catch {
        note.textContent = "The app does not answer. Is it still running?";
      } finally {
        zone.classList.remove("busy");
      }
    };
    input.addEventListener("change", () => { send(input.files[0]); input.value = ""; });
    for (const kind of ["dragenter", "dragover"]) {
      zone.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.add("over"); });
    }
    for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => { event.preventDefault(); send(event.dataTransfer.files[0]); });
  },

  draw(element, trigger) {
    const canvas = element.querySelector("canvas"), pen = canvas.getContext("2d");
    let last = null, colour = "#ffffff";
    const clear = () => { pen.fillStyle = "#000000"; pen.fillRect(0, 0, canvas.width, canvas.height); };
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
    };
    const line = (from, to) => {
      pen.strokeStyle = colour;
      pen.lineWidth = canvas.width / 12;
      pen.lineCap = pen.lineJoin = "round";
      pen.beginPath();
      pen.moveTo(...from);
      pen.lineTo(...to);
      pen.stroke();
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      last = place(event);
      line(last, last);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      const now = place(event);
      line(last, now);
      last = now;
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, () => {
        if (last) this.show(canvas.toDataURL("image/png"), "draw", trigger);
        last = null;
      });
    }
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.colour) {
        colour = button.dataset.colour;
        for (const other of element.querySelectorAll("[data-colour]")) other.setAttribute("aria-pressed", String(other === button));
      } else {
        clear();
      }
    });
    clear();
  },

  // The page shows the previous answer, greyed out, until the new one arrives.
  pending(waits) {
    for (const id of ["answer", "tree"]) document.getElementById(id)?.classList.toggle("pending", waits);
  },

  // Details stay unfolded when the answer changes.
  unfold(element, watch) {
    let open = false;
    element.addEventListener("toggle", (event) => { open = event.target.open; }, true);
    watch("value", () => { const part = element.querySelector("details"); if (part) part.open = open; });
  },
};
