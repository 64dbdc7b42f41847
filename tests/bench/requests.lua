-- Requests for wrk, built as tests/bench/workload.py describes them. Arguments are key=value.
local case, head, prefix, suffix
local sent, received = 0, 0
local known, known_block = {}, -1
local primed = false

local function read(args)
   local values = {}
   for _, text in ipairs(args) do
      local key, value = text:match("^(%w+)=(.*)$")
      values[key] = tonumber(value) or value
   end
   return values
end

-- What the openai SDK sends besides the body.
local function headers()
   return table.concat({
      "POST /v1/chat/completions HTTP/1.1",
      "Host: " .. wrk.host .. ":" .. wrk.port,
      "Accept: " .. (case.stream == 1 and "text/event-stream" or "application/json"),
      "Accept-Encoding: gzip, deflate",
      "Content-Type: application/json",
      "User-Agent: OpenAI/Python 2.8.1",
      "X-Stainless-Lang: python",
      "X-Stainless-Package-Version: 2.8.1",
      "X-Stainless-OS: Linux",
      "X-Stainless-Arch: x64",
      "X-Stainless-Runtime: CPython",
      "X-Stainless-Runtime-Version: 3.11.2",
      "X-Stainless-Async: false",
      "X-Stainless-Retry-Count: 0",
      "X-Stainless-Read-Timeout: 600",
      "Authorization: Bearer sk-bench-0000000000000000000000000000000000000000",
      "",
   }, "\r\n")
end

-- All messages of a conversation, joined, and where its stages end.
local function conversation(id)
   local last = case.first + 2 * (case.stages - 1)
   local parts, ends, length = {}, {}, 0
   for seq = 1, last do
      local text
      if seq % 2 == 1 then
         text = '{"role":"user","content":"Question ' .. id .. "-" .. seq .. ": " .. case.question .. '"}'
      else
         text = '{"role":"assistant","content":"Answer ' .. id .. "-" .. (seq - 1) .. ". " .. case.answer .. '"}'
      end
      if seq > 1 then text = "," .. text end
      parts[seq] = text
      length = length + #text
      ends[seq] = length
   end
   return { id = id, text = table.concat(parts), ends = ends }
end

local function request_for(talk, seq, extra)
   local body = prefix .. talk.text:sub(1, talk.ends[seq]) .. suffix
   return table.concat({
      head,
      "X-Bench-Reply: ", talk.id, "-", seq,
      "\r\nX-Bench-Tokens: ", math.floor(#body / 4.2),
      extra or "",
      "\r\nContent-Length: ", #body, "\r\n\r\n", body,
   })
end

-- Stage by stage, each for all conversations of a block before the next.
local function growing(n)
   local size = case.conversations * case.stages
   local block = math.floor(n / size)
   if block ~= known_block then known, known_block = {}, block end
   local index = n % case.conversations
   local talk = known[index]
   if not talk then
      talk = conversation(case.name .. "." .. (block * case.conversations + index))
      known[index] = talk
   end
   return request_for(talk, case.first + 2 * math.floor((n % size) / case.conversations))
end

local function seeding(n)
   return request_for(conversation(case.name .. "." .. n), case.first - 2)
end

local function repeated(n)
   known[0] = known[0] or conversation(case.mark)
   return request_for(known[0], case.first, "\r\nX-Palimpsest-Session: bench-" .. case.name .. "-" .. n)
end

function init(args)
   case = read(args)
   case.mark = case.name:sub(1, 1) .. "same"
   head = headers()
   prefix = '{"model":"gpt-4.1-mini","messages":[{"role":"system","content":"You look after a warehouse at night."},'
   suffix = case.stream == 1 and '],"temperature":0.2,"stream":true}' or '],"temperature":0.2}'
   math.randomseed(20261201)
   if case.seed then
      function response()
         received = received + 1
         if received == case.seed then io.write("seeded\n") io.flush() end
      end
   end
   if case.think then
      function delay() return math.random(0, 2 * case.think) end
   end
end

function request()
   local build = case.seed and seeding or (case.repeated == 1 and repeated or growing)
   -- wrk asks for one request only to look at it.
   if not primed then
      primed = true
      return build(0)
   end
   local text = build(sent)
   sent = sent + 1
   return text
end

function done(summary, latency)
   io.write(string.format(
      '\nBENCH {"requests":%d,"microseconds":%d,"p50":%d,"p99":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      summary.errors.connect, summary.errors.read, summary.errors.write, summary.errors.timeout, summary.errors.status))
end
