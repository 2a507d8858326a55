package jsonrpc_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator generates random messages. Different parsers read different content from some of them. Some others are
// accepted by no parser.
type generator struct{ *rand.Rand }

func one[T any](d generator, of ...T) T { return of[d.IntN(len(of))] }

// rarely returns true in one of n cases on average.
func (d generator) rarely(n int) bool { return d.IntN(n) == 0 }

func (d generator) message() []byte {
	members := []string{
		d.member("jsonrpc", d.pick(`"2.0"`, 60, `"2.\u0030"`, `2.0`, `"1.0"`, `null`)),
		d.member("method", d.method()),
		d.member("params", d.params()),
	}
	if !d.rarely(8) {
		members = append(members, d.member("id", d.pick(fmt.Sprint(d.IntN(1000)), 12, `"a"`, `"\u0061"`, `1.0`, `1e2`, `-0`, `null`, `""`, `9007199254740993`, `"1"`, `[]`, `"é"`)))
	}
	if d.rarely(40) {
		members = append(members, one(d, members...))
	}
	if d.rarely(30) {
		members = append(members, d.member(d.key(), d.value(2)))
	}
	d.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	text := []byte(d.space() + "{" + strings.Join(members, d.comma()) + "}" + d.space())
	if d.rarely(25) {
		text = append(text, one(d, "{}", "//", "\x00", ",", "]", "\ufeff")...)
	}
	if d.rarely(40) {
		text = append([]byte("\ufeff"), text...)
	}
	for d.rarely(30) {
		text[d.IntN(len(text))] = byte(d.IntN(256))
	}
	return text
}

// pick returns the string usual in n of n+1 cases on average. In the other cases it returns one of the strings in the
// list others.
func (d generator) pick(usual string, n int, others ...string) string {
	if !d.rarely(n + 1) {
		return usual
	}
	return one(d, others...)
}

func (d generator) space() string {
	if !d.rarely(6) {
		return ""
	}
	return d.pick(one(d, " ", "\t", "\n", "\r", "\r\n", "  "), 60, "\v", "\f", "\u00a0", "\u2028", "\u0085", "/**/", "\x00", "\ufeff")
}

func (d generator) comma() string {
	return d.space() + d.pick(",", 500, ",,", ";", " ", "") + d.space()
}

func (d generator) member(key, value string) string {
	return d.space() + d.spelled(key) + d.space() + d.pick(":", 800, "=", "::", "") + d.space() + value
}

// spelled returns a key as a JSON string. Sometimes it returns a different spelling that only some parsers treat as the
// same key.
func (d generator) spelled(key string) string {
	if !d.rarely(90) {
		return `"` + key + `"`
	}
	i := d.IntN(len(key))
	switch d.IntN(8) {
	case 0:
		return `"` + strings.ToUpper(key) + `"`
	case 1:
		return `"` + key[:i] + strings.ToUpper(key[i:i+1]) + key[i+1:] + `"`
	case 2:
		return fmt.Sprintf(`"%s\u%04x%s"`, key[:i], key[i], key[i+1:])
	case 3: // letters that fold to ASCII ones
		return `"` + strings.NewReplacer("k", "\u212a", "s", "\u017f", "i", "\u0131").Replace(key) + `"`
	case 4:
		return `"` + key[:i] + one(d, "\u200b", "\u00ad", "\ufeff", `\u0000`, " ", "_", "-") + key[i:] + `"`
	case 5:
		return `'` + key + `'`
	case 6:
		return key
	default:
		return `"` + key + one(d, " ", `\n`, `\u0000`, "\u0301") + `"`
	}
}

func (d generator) method() string {
	return d.pick(one(d, `"tools/call"`, `"tools/call"`, `"tools/call"`, `"prompts/get"`, `"resources/read"`, `"completion/complete"`, `"x/y"`, `"logging/setLevel"`, `"notifications/progress"`), 25,
		`"tools\/call"`, `"tools/c\u0061ll"`, `"Tools/call"`, `"tools/call "`, `"tools/call\u0000"`, `null`, `1`, `["tools/call"]`, `"tool\u017f/call"`)
}

func (d generator) params() string {
	if d.rarely(60) {
		return d.value(2)
	}
	members := []string{d.member("name", d.name()), d.member("arguments", d.arguments())}
	for d.rarely(3) {
		switch d.IntN(6) {
		case 0:
			members = append(members, d.member("uri", d.text()))
		case 5:
			members = append(members, d.member("ref", d.ref()))
		case 1:
			members = append(members, d.member("_meta", d.meta()))
		case 2:
			members = append(members, d.member("progressToken", one(d, "1", `"t"`, "1.5")))
		case 3:
			members = append(members, d.member(d.key(), d.value(2)))
		default:
			if d.rarely(8) {
				members = append(members, one(d, members...)) // a duplicate member
			}
		}
	}
	d.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return "{" + strings.Join(members, d.comma()) + d.pick("", 200, ",") + "}"
}

func (d generator) ref() string {
	members := []string{d.member("type", d.pick(one(d, `"ref/prompt"`, `"ref/resource"`), 12, `"ref\/prompt"`, `"Ref/prompt"`, `null`, `"ref/tool"`))}
	for range d.IntN(3) {
		members = append(members, d.member(one(d, "name", "uri"), d.pick(d.name(), 8, d.text())))
	}
	d.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return d.pick("{"+strings.Join(members, d.comma())+"}", 20, "null", "[]", `"ref/prompt"`)
}

func (d generator) meta() string {
	var members []string
	for range d.IntN(4) {
		members = append(members, d.member(one(d, "progressToken", "traceparent", "tracestate", "baggage", "dev.sluice/run", "dev.sluice/x", "a/b", "io.modelcontextprotocol/protocolVersion"), d.text()))
	}
	return "{" + strings.Join(members, d.comma()) + "}"
}

func (d generator) name() string {
	return d.pick(one(d, `"safe"`, `"read_file"`, `"a.b/c-d"`), 12, `"s\u0061fe"`, `"safe "`, `"SAFE"`, `"\u017fafe"`, `null`, `1`, `""`, `{"x":1}`, `"safe\u0000"`)
}

func (d generator) arguments() string {
	return d.pick(d.object(3), 20, "null", "[]", `"{}"`, "1")
}

// key generates a key for a member of the arguments. Some of these keys have a special meaning in a programming
// language.
func (d generator) key() string {
	return one(d, "a", "b", "path", "name", "method", "id", "__proto__", "constructor", "toString", "0", "10", "é", "e\u0301", "ключ", "𝄞", "\uffff", "\u212a", "x y", "length", "-1", "null", "key", "KEY")
}

func (d generator) object(depth int) string {
	var members []string
	for range d.IntN(4) {
		members = append(members, d.member(d.key(), d.value(depth-1)))
	}
	return "{" + strings.Join(members, d.comma()) + d.pick("", 300, ",") + "}"
}

func (d generator) value(depth int) string {
	switch n := d.IntN(10); {
	case n < 3 && depth > 0:
		return d.object(depth)
	case n < 4 && depth > 0:
		var elements []string
		for range d.IntN(4) {
			elements = append(elements, d.value(depth-1))
		}
		return "[" + strings.Join(elements, d.comma()) + "]"
	case n < 6:
		return d.number()
	case n < 9:
		return d.text()
	default:
		return d.pick(one(d, "true", "false", "null"), 30, "True", "nil", "undefined", "TRUE", "nul", "-")
	}
}

func (d generator) number() string {
	return d.pick(one(d, fmt.Sprint(d.Int64()), fmt.Sprint(d.IntN(100)), fmt.Sprint(-d.IntN(100)), fmt.Sprint(d.NormFloat64()), fmt.Sprintf("%d.%de%d", d.IntN(10), d.IntN(1000), d.IntN(600)-300)), 12,
		"-0", "0.0", "1E5", "1e+5", "1e400", "-1e400", "1e-400", "4.9e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "1.7976931348623159e308",
		"9007199254740992", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616", "0.1", "0.30000000000000004",
		"01", "+1", ".5", "1.", "0x10", "1_000", "NaN", "Infinity", "-Infinity", "1e", "--1", strings.Repeat("9", 70), "0."+strings.Repeat("3", 60))
}

func (d generator) text() string {
	var out strings.Builder
	for range d.IntN(5) {
		out.WriteString(d.pick(one(d, "a", "Z", " ", "é", "ß", "日本", "𝄞", "\u0301", `\n`, `\"`, `\\`, `\/`, `\u00e9`, `\ud834\udd1e`, "\u2028", "\u0085", "\u007f", "\ufffd", `\uFFFF`, "/", "'"), 100,
			`\ud834`, `\udd1e`, `\udd1e\ud834`, `\u0000`, "\x00", "\n", "\t", `\x41`, `\a`, `\u12`, `\U00e9`, "\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf", `\u{41}`, "\ufeff", `\'`))
	}
	return d.pick(`"`+out.String()+`"`, 200, "'"+out.String()+"'", `"`+out.String())
}
