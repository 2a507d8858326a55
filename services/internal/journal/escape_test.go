package journal_test

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case S2.
func TestIntent_EscapesHostileNames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"a newline and a forged record": {"x\n{\"seq\":2,\"kind\":\"intent\"}", "x\n{\"seq\":2,\"kind\":\"intent\"}"},
		"a carriage return":             {"a\rb", "a\rb"},
		"a zero byte":                   {"a\x00b", "a\x00b"},
		"ANSI colours":                  {"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"},
		"a C1 control sequence":         {"\u009b31mred", "\u009b31mred"},
		"a next line character":         {"a\u0085b", "a\u0085b"},
		"delete":                        {"a\x7fb", "a\x7fb"},
		"line and paragraph separators": {"a\u2028b\u2029c", "a\u2028b\u2029c"},
		"reversed text":                 {"a\u202egnp.exe", "a\u202egnp.exe"},
		"a zero width space":            {"a\u200bb", "a\u200bb"},
		"a byte order mark":             {"\ufeffa", "\ufeffa"},
		"a tag beyond the basic plane":  {"a\U000e0041b", "a\U000e0041b"},
		"invalid UTF-8":                 {"a\xff\xc2b", "a\ufffd\ufffdb"},
		"half a surrogate pair":         {"a\xed\xa0\x80b", "a\ufffd\ufffd\ufffdb"},
		"quotes and backslashes":        {`a"\",crc":"`, `a"\",crc":"`},
		"letters of other scripts":      {"größe 名前 🙂", "größe 名前 🙂"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := journal.Record{
				Kind: journal.KindRefusal, DecisionID: c.in, Tool: c.in, Method: c.in, Message: c.in, Peer: c.in,
				Principal: journal.Principal{Subject: c.in}, Chain: []journal.Principal{{Agent: c.in}},
				Limits: []journal.Limit{{Bucket: c.in, Per: []string{c.in}}},
			}
			line, err := journal.FirstLine(rec, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range string(line) {
				if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
					t.Fatalf("the line holds %U: %q", r, line)
				}
			}
			got, err := journal.Parse(line)
			if err != nil {
				t.Fatal(err)
			}
			for field, text := range map[string]string{
				"decision id": got.DecisionID, "tool": got.Tool, "method": got.Method, "message": got.Message,
				"peer": got.Peer, "subject": got.Subject, "chain": got.Chain[0].Agent, "bucket": got.Limits[0].Bucket,
				"per": got.Limits[0].Per[0],
			} {
				if text != c.want {
					t.Errorf("%s reads %q, want %q", field, text, c.want)
				}
			}
		})
	}
}

// Case S2.
func TestIntent_CutsLongName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	huge := strings.Repeat("ü\n", 2<<20)
	err := j.Refusal(t.Context(), &journal.Record{DecisionID: "d", Tool: huge, Method: huge, Message: huge, Code: "tool_name_invalid"})
	if err != nil {
		t.Fatal(err)
	}
	all := lines(t, dir, "refusals")
	if len(all) != 1 || len(all[0]) > 64<<10 {
		t.Fatalf("there are %d lines", len(all))
	}
	rec := read(t, all[0])
	if rec.Code != "tool_name_invalid" || !strings.HasPrefix(huge, strings.TrimRight(rec.Tool, "\ufffd…")) || len(rec.Tool) > 4200 {
		t.Errorf("the record has code %s and a tool of %d bytes", rec.Code, len(rec.Tool))
	}
	verified(t, dir)
}

// Case S2. A string from a refused caller uses at most 256 bytes in the file. If the string is truncated, "…" is added
// to these bytes.
func TestRefusal_LimitsLengthOfTexts(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"plain": "x", "quoted": `"`, "a control": "\x01", "two bytes that are escaped": "\u0085", "four bytes that are escaped": "\U000e0041",
		"letters": "ü", "invalid UTF-8": "\xff", "half of a rune": "\xf0\x9f",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line := func(text string) int {
				rec := journal.Record{Kind: journal.KindRefusal, DecisionID: "d", Run: text, Method: text, Tool: text, Message: text}
				written, err := journal.FirstLine(rec, time.Unix(0, 0))
				if err != nil {
					t.Fatal(err)
				}
				if got := read(t, string(written)); len(text) > 4 && (!strings.HasSuffix(got.Tool, "…") || got.Tool != got.Run || got.Tool != got.Message) {
					t.Errorf("the record contains %q", got.Tool)
				}
				return len(written)
			}
			// The maximum is the length of a line whose four strings have one byte each, plus the additional length of
			// four truncated strings, each of which ends with "…".
			if most := line("x") + 4*(256-1+len("…")); line(strings.Repeat(text, 4<<10)) > most {
				t.Errorf("the record takes %d bytes, want %d", line(strings.Repeat(text, 4<<10)), most)
			}
		})
	}
}

func TestIntent_RefusesRecordThatIsTooLarge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	rec := journal.Record{DecisionID: "d", Limits: make([]journal.Limit, 128<<10)}
	if err := j.Intent(t.Context(), &rec); err == nil || !strings.Contains(err.Error(), journal.ErrTooLarge.Error()) {
		t.Errorf("the error is %v", err)
	}
	if err := j.Healthy(); err != nil {
		t.Errorf("a record that is too large stops the journal: %v", err)
	}
	writeIntent(t, j, "e")
	verified(t, dir)
}
