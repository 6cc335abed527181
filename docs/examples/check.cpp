// Checks a contiguous schedule for one GPU, as check.py beside it does, with the C++17 library alone.
//
//     c++ -std=c++17 -O2 -o check check.cpp && ./check INSTANCE.json SCHEDULE.json
//
// Exit status: 0 valid, 1 not valid (a reason a line), 2 the files break a rule of their formats. It compares no
// checksum.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

using Number = long long;
using Numbers = std::vector<Number>;

// --- JSON, as far as these formats need it: numbers are whole, and an escaped character stands for itself --------

struct Value {
    enum Kind { Null, Bool, Whole, Text, List, Object } kind = Null;
    Number number = 0;
    std::string text;
    std::vector<Value> items;
    std::map<std::string, Value> keys;

    bool has(const std::string& key) const { return keys.count(key) && keys.at(key).kind != Null; }
    const Value& operator[](const std::string& key) const { return keys.at(key); }
    Number whole(const std::string& key, Number otherwise) const { return has(key) ? keys.at(key).number : otherwise; }
    std::string word(const std::string& key, const std::string& otherwise) const {
        return has(key) ? keys.at(key).text : otherwise;
    }
    Numbers list(const std::string& key) const {
        Numbers found;
        if (has(key))
            for (const Value& item : keys.at(key).items) found.push_back(item.number);
        return found;
    }
};

struct Reader {
    const std::string& data;
    size_t at = 0;

    char next() {
        while (at < data.size() && std::isspace(static_cast<unsigned char>(data[at]))) at++;
        if (at == data.size()) throw std::runtime_error("the file ends too early");
        return data[at];
    }
    void take(char c) {
        if (next() != c) throw std::runtime_error(std::string("there is no ") + c);
        at++;
    }
    std::string text() {
        std::string found;
        for (take('"'); at < data.size() && data[at] != '"'; at++) {
            if (data[at] == '\\') at++;
            if (at < data.size()) found += data[at];
        }
        take('"');
        return found;
    }
    Value value() {
        Value found;
        char c = next();
        if (c == '{' || c == '[') {
            found.kind = c == '{' ? Value::Object : Value::List;
            char end = c == '{' ? '}' : ']';
            for (at++; next() != end;) {
                if (c == '{') {
                    std::string key = text();
                    take(':');
                    found.keys[key] = value();
                } else {
                    found.items.push_back(value());
                }
                if (next() != end) take(',');
            }
            at++;
        } else if (c == '"') {
            found.kind = Value::Text;
            found.text = text();
        } else if (c == '-' || std::isdigit(static_cast<unsigned char>(c))) {
            found.kind = Value::Whole;
            found.number = std::strtoll(data.c_str() + at, nullptr, 10);
            at = std::min(data.find_first_not_of("+-.eE0123456789", at), data.size());
        } else {
            size_t length = c == 'f' ? 5 : 4;
            std::string word = data.substr(at, length);
            if (word != "true" && word != "false" && word != "null") throw std::runtime_error("this is not JSON");
            found.kind = c == 'n' ? Value::Null : Value::Bool;
            found.number = c == 't';
            at += length;
        }
        return found;
    }
};

Value read(const char* name) {
    std::ifstream file(name, std::ios::binary);
    if (!file) throw std::runtime_error("it cannot be opened");
    std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return Reader{data}.value();
}

// --- the checker ------------------------------------------------------------------------------------------------

struct Stay {  // a residence
    Number p, begin, end, block, workspace_of, bytes;
    Numbers free;
};

struct Found {  // what is known of a block: versions, and who wrote, copied and read it last
    Number device = 0, host = 0, latest = 0, writer = -1, saver = -1, copier = -1;
    Numbers readers;
};

std::vector<std::string> check(const Value& instance, const Value& schedule) {
    const auto &blocks = instance["blocks"].items, &tasks = instance["tasks"].items;
    const auto& operations = schedule["operations"].items;
    bool beyond = instance.has("cluster") || instance.has("host_budget_bytes") || instance.has("link") ||
                  schedule["memory_model"].text != "contiguous";
    for (const Value& block : blocks) beyond |= block.word("initially", "absent") == "carried";
    for (const Value& task : tasks) {
        beyond |= task.has("slowdown_ppm");
        for (const Value& way : task["algorithms"].items) beyond |= way.has("on") || way.has("takes_over");
    }
    if (beyond) return {"the files use what this checker does not know"};
    std::vector<std::string> wrong;
    auto need = [&](bool holds, Number p, const std::string& told) {
        if (!holds)
            wrong.push_back(p < 0 ? told : "operation " + std::to_string(operations[p]["id"].number) + ": " + told);
    };
    need(schedule["instance"].text == instance["name"].text, -1, "the schedule is for another instance");

    // Operations: their streams and times, and which of them have ended whenever one starts.
    bool single = instance["engines"].text == "single";
    std::map<std::string, std::string> streams = {{"run", "compute"},
                                                  {"move", "compute"},
                                                  {"offload", single ? "copy" : "d2h"},
                                                  {"prefetch", single ? "copy" : "h2d"}};
    const Number count = static_cast<Number>(operations.size());
    std::map<Number, Number> place;
    std::map<std::string, Number> last;
    std::map<Number, Number> first;
    Numbers order, ends;
    std::vector<const Value*> ways;
    std::vector<std::vector<bool>> ended;
    for (Number p = 0; p < count; p++) {
        const Value& op = operations[p];
        const std::string &kind = op["kind"].text, &stream = op["stream"].text;
        Numbers earlier;
        for (Number id : op.list("after")) earlier.push_back(place.at(id));
        if (last.count(stream)) earlier.push_back(last[stream]);
        place[op["id"].number] = last[stream] = p;
        ended.emplace_back(count);
        Number start = 0;
        for (Number q : earlier) {
            for (Number r = 0; r < q; r++)
                if (ended[q][r]) ended[p][r] = true;
            ended[p][q] = true;
            start = std::max(start, ends[q]);
        }
        ways.push_back(nullptr);
        Number time = -1;
        if (kind == "run") {
            Number k = op["task"].number;
            ways[p] = &tasks.at(k)["algorithms"].items.at(op["algorithm"].number);
            time = (*ways[p])["duration_ns"].number;
            if (!first.emplace(k, p).second)
                need(tasks[k].whole("recomputable", 0), p, "this task may not run again");
            else
                order.push_back(k);
        } else {
            time = blocks.at(op["block"].number).whole(kind + "_ns", -1);
        }
        ends.push_back(start + std::max<Number>(time, 0));
        need(time >= 0, p, "such a copy is impossible");
        need(op["start_ns"].number == start && op["end_ns"].number == ends[p], p,
             "it takes place from " + std::to_string(start) + " to " + std::to_string(ends[p]));
        need(stream == streams.at(kind), p, "it is on the wrong stream");
    }
    bool all = order.size() == tasks.size() && std::is_sorted(order.begin(), order.end());
    need(all, -1, "not all tasks run, or not in their order");
    Number makespan = ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
    need(schedule["makespan_ns"].number == makespan, -1, "makespan_ns is wrong");

    auto before = [&](Number q, Number p) { return q < 0 || (p >= 0 && ended[p][q]); };
    auto each = [](const Numbers& some, auto holds) { return std::all_of(some.begin(), some.end(), holds); };
    auto any = [](const Numbers& some, auto holds) { return std::any_of(some.begin(), some.end(), holds); };
    auto holds = [](const Numbers& some, Number one) { return std::count(some.begin(), some.end(), one) > 0; };
    auto gone = [&](const Stay& stay, Number p) {
        return !stay.free.empty() && each(stay.free, [&](Number q) { return p >= 0 && before(q, p); });
    };
    auto kind_of = [&](Number p) { return p < 0 ? std::string("start") : operations[p]["kind"].text; };

    // Residences: who acquires them, their sizes and places, and that no two share bytes or a block.
    Number pool = instance["budget_bytes"].number - instance["resident_bytes"].number;
    Number unit = instance.whole("alignment_bytes", 512), top = 0;
    std::vector<Stay> stays;
    for (const Value& one : schedule["residences"].items) {
        Number acquired = one.has("acquired_by") ? place.at(one["acquired_by"].number) : -1;
        Number offset = one["offset"].number, bytes = one["bytes"].number;
        Stay stay{acquired, offset, offset + bytes, one.whole("block", -1), one.whole("workspace_of", -1), bytes, {}};
        for (Number id : one.list("released_after")) stay.free.push_back(place.at(id));
        stays.push_back(stay);
        top = std::max(top, stay.end);
    }
    std::stable_sort(stays.begin(), stays.end(), [](const Stay& a, const Stay& b) { return a.p < b.p; });
    auto made = [&](Number p) {  // what a run writes first: all outputs of its task, or its algorithm's
        return (ways[p]->has("outputs") ? *ways[p] : tasks[operations[p]["task"].number]).list("outputs");
    };
    for (size_t n = 0; n < stays.size(); n++) {
        const Stay& stay = stays[n];
        const Number p = stay.p, d = stay.block;
        auto ends_by = [&](Number q) { return q == p || before(p, q); };
        need(each(stay.free, ends_by), p, "what it acquires is released before that");
        need(stay.begin % unit == 0 && stay.end <= pool, p, "a residence is outside of the pool or not aligned");
        if (d < 0) {
            bool right = p >= 0 && ways[p] && place.at(stay.workspace_of) == p && stay.free == Numbers{p};
            need(right && stay.bytes == (*ways[p])["workspace_bytes"].number, p, "a workspace is not that of its run");
        } else {
            bool right = p < 0 ? blocks.at(d).word("initially", "absent") == "device"
                         : ways[p] ? holds(made(p), d)
                                   : kind_of(p) != "offload" && operations[p]["block"].number == d;
            need(right && stay.bytes == blocks.at(d)["bytes"].number, p,
                 "it does not bring all of block " + std::to_string(d));
        }
        const Stay* old = nullptr;
        for (size_t m = 0; m < n; m++) {
            bool share = stays[m].begin < stay.end && stay.begin < stays[m].end;
            need(!share || gone(stays[m], p), p, "it acquires bytes that may still be in use");
            if (d >= 0 && stays[m].block == d) old = &stays[m];
        }
        if (old) {
            bool moved = kind_of(p) == "move";
            bool parting = moved && holds(old->free, p) &&
                           each(old->free, [&](Number q) { return q == p || before(q, p); });
            need(parting || (!moved && gone(*old, p)), p, "block " + std::to_string(d) + " may still be elsewhere");
        }
    }
    need(instance["resident_bytes"].number + top == schedule["peak_bytes"].number && pool >= 0, -1,
         "peak_bytes is wrong or over the budget");

    // Data: from the top of the list to its end, which version of each block is where, and who may be using it.
    std::vector<Numbers> finds;
    Numbers written(blocks.size(), 0);
    for (const Value& task : tasks) {
        finds.push_back(written);
        for (Number d : task.list("outputs")) written.at(d)++;
        for (Number d : task.list("updates")) written.at(d)++;
    }
    std::map<Number, const Stay*> current;
    std::vector<Found> found(blocks.size());
    for (size_t d = 0; d < blocks.size(); d++)
        if (blocks[d].word("initially", "absent") == "absent") found[d].host = -1;
    for (Number p = -1; p < count; p++) {
        std::map<Number, const Stay*> arrived;
        Number spaces = 0;
        for (const Stay& stay : stays)
            if (stay.p == p) stay.block < 0 ? void(spaces++) : void(arrived[stay.block] = &stay);
        auto arrive = [&] {
            for (auto [d, stay] : arrived) current[d] = stay;
        };
        if (p < 0 || ways[p]) arrive();
        if (p < 0) continue;
        const Value& op = operations[p];
        const bool runs = ways[p] != nullptr;
        Number wanted = runs && (*ways[p])["workspace_bytes"].number > 0;
        need(spaces == wanted, p, "it has too many workspaces or too few");
        Numbers inputs, writes, uses;
        if (runs) {
            const Value& task = tasks[op["task"].number];
            inputs = (ways[p]->has("inputs") ? *ways[p] : task).list("inputs");
            writes = made(p);
            for (Number d : task.list("updates")) inputs.push_back(d), writes.push_back(d);
            uses = inputs;
            uses.insert(uses.end(), writes.begin(), writes.end());
        } else if (kind_of(p) != "prefetch") {
            uses = {op["block"].number};
        }
        std::map<std::string, std::set<Number>> bases;
        for (Number d : uses) {
            const Stay* stay = current.count(d) ? current[d] : nullptr;
            bool there = stay && (stay->p == p || before(stay->p, p));
            bool kept = there && (stay->free.empty() ||
                                  any(stay->free, [&](Number q) { return q == p || before(p, q); }));
            need(kept, p, "block " + std::to_string(d) + " need not be on the device");
            if (runs && stay && blocks[d].has("tensor"))
                bases[blocks[d]["tensor"].text].insert(stay->begin - blocks[d]["begin"].number);
        }
        for (const auto& base : bases)
            need(base.second.size() == 1, p, "parts of a tensor are not where they belong");
        for (Number d : inputs)
            need(found[d].device == finds[op["task"].number][d], p,
                 "block " + std::to_string(d) + " is not in the version that it needs");
        for (Number d : writes) {
            Number version = finds[op["task"].number][d] + 1;
            need(before(found[d].saver, p) && version >= found[d].latest, p,
                 "it may spoil block " + std::to_string(d));
            found[d].device = found[d].latest = version;
            found[d].writer = p;
        }
        if (runs) continue;
        const Number d = op["block"].number;
        Found& it = found[d];
        const bool brings = kind_of(p) == "prefetch";
        const Number version = brings ? it.host : it.device;
        need(version == it.latest, p, "it copies an old version of block " + std::to_string(d));
        if (kind_of(p) == "offload") {
            bool done = before(it.copier, p) && each(it.readers, [&](Number q) { return before(q, p); });
            need(done && before(it.writer, p), p,
                 "block " + std::to_string(d) + " is still being written or copied");
            it.host = version;
            it.saver = it.copier = p;
            it.readers.clear();
            continue;
        }
        need(arrived.count(d), p, "it has no place for block " + std::to_string(d));
        need(before(brings ? it.copier : it.saver, p) && (brings || before(it.writer, p)), p, "it is too early");
        if (brings) it.readers.push_back(p);
        it.device = version;
        it.writer = p;
        it.saver = -1;
        arrive();
    }
    for (size_t d = 0; d < blocks.size(); d++) {
        std::string end = blocks[d].word("finally", "anywhere");
        const Stay* stay = current.count(d) ? current[d] : nullptr;
        need(end != "host" || found[d].host == found[d].latest, -1,
             "block " + std::to_string(d) + " does not end on the host");
        need(end != "device" || (stay && stay->free.empty() && found[d].device == found[d].latest), -1,
             "block " + std::to_string(d) + " does not end on the device");
    }
    return wrong;
}

int main(int count, char** words) {
    if (count != 3) {
        std::cerr << "usage: check INSTANCE.json SCHEDULE.json\n";
        return 2;
    }
    try {
        std::vector<std::string> wrong = check(read(words[1]), read(words[2]));
        for (const std::string& reason : wrong) std::cout << reason << "\n";
        if (wrong.empty()) std::cout << "valid\n";
        return !wrong.empty();
    } catch (const std::exception& error) {
        std::cerr << "the files break a rule of their formats: " << error.what() << "\n";
        return 2;
    }
}
