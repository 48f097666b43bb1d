"""The page's script: a line at the pointer across all pictures, and the numbers of that time beside it."""

SCRIPT = """
(function () {
  "use strict";
  var numbers = JSON.parse(document.getElementById("numbers").textContent);
  var tip = document.getElementById("tip");
  var pictures = Array.prototype.slice.call(document.querySelectorAll("svg.picture"));
  document.querySelectorAll(".slices").forEach(function (slices) { slices.remove(); });
  document.querySelectorAll("svg.picture title").forEach(function (title) {
    title.parentNode.setAttribute("data-words", title.textContent);
    title.remove();
  });
  function begin(picture) { return Number(picture.getAttribute("data-start")); }
  function lasts(picture) { return Number(picture.getAttribute("data-length")); }
  function clock(seconds) {
    return new Date((seconds + numbers.offset) * 1000).toISOString().slice(11, 19);
  }
  function find(seconds) {
    var low = 0, high = numbers.ends.length - 1;
    while (low < high) {
      var middle = (low + high) >> 1;
      if (numbers.ends[middle] < seconds) { low = middle + 1; } else { high = middle; }
    }
    return low;
  }
  function line(words, colour, value) {
    var row = document.createElement("div");
    var box = document.createElement("i");
    box.className = colour ? "swatch " + colour : "";
    var name = document.createElement("span");
    name.textContent = words;
    var told = document.createElement("b");
    told.textContent = value;
    row.append(box, name, told);
    return row;
  }
  function fill(picture, target, seconds) {
    tip.textContent = "";
    var head = document.createElement("strong");
    head.textContent = clock(numbers.start + seconds);
    tip.append(head);
    var lane = target.closest(".lane");
    if (lane) {
      var whose = document.createElement("div");
      whose.textContent = lane.querySelector("text").getAttribute("data-words");
      tip.append(whose);
    }
    var rows = numbers.charts[picture.getAttribute("data-chart")] || [];
    var index = find(seconds);
    rows.forEach(function (row) {
      var value = row[3][row[3].length === 1 ? 0 : index];
      if (value === undefined) { return; }
      tip.append(line(row[0], row[1], value === null ? "none" : value.toLocaleString("en") + row[2]));
    });
    var owner = target.closest("[data-words]");
    if (owner && (rows.length === 0 || owner.classList.contains("trouble-of"))) {
      var words = document.createElement("p");
      words.textContent = owner.getAttribute("data-words");
      tip.append(words);
    }
  }
  function show(event) {
    var picture = event.currentTarget, place = picture.getBoundingClientRect();
    var x = (event.clientX - place.left) / place.width * numbers.width;
    var share = (x - numbers.left) / numbers.plot;
    var seconds = begin(picture) + share * lasts(picture);
    if (share < 0 || share > 1) {
      var owner = event.target.closest("[data-words]");
      hide();
      if (owner && owner.tagName === "text") { tell(owner, event); }
      return;
    }
    pictures.forEach(function (other) {
      var cross = other.querySelector(".cross"), part = (seconds - begin(other)) / lasts(other);
      cross.setAttribute("transform", "translate(" + (numbers.left + part * numbers.plot).toFixed(1) + " 0)");
      cross.style.visibility = part < 0 || part > 1 ? "hidden" : "visible";
    });
    fill(picture, event.target, seconds - numbers.start);
    put(event);
  }
  function tell(owner, event) {
    tip.textContent = owner.getAttribute("data-words");
    put(event);
  }
  function put(event) {
    tip.style.display = "block";
    var right = event.clientX + 18 + tip.offsetWidth > window.innerWidth;
    tip.style.left = (right ? event.clientX - 18 - tip.offsetWidth : event.clientX + 18) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 12, window.innerHeight - tip.offsetHeight - 4)) + "px";
  }
  function hide() {
    tip.style.display = "none";
    pictures.forEach(function (other) { other.querySelector(".cross").style.visibility = "hidden"; });
  }
  pictures.forEach(function (picture) {
    picture.addEventListener("pointermove", show);
    picture.addEventListener("pointerleave", hide);
  });
})();
"""
