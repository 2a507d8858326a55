package wasmmeter_test

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

type parts map[byte][]byte

// build encodes a module. By default, the module has one memory, one global, and one function with the given code. The
// function has no parameters and no results. The parameter over contains sections that replace the default sections.
func build(code []byte, over parts) []byte {
	all := parts{
		1: {1, 0x60, 0, 0}, 3: {1, 0}, 5: {1, 0, 1}, 6: {1, 0x7f, 0, 0x41, 0, 0x0b},
		10: append(append([]byte{1}, uleb(nil, uint32(len(code)+1))...), append([]byte{0}, code...)...),
	}
	maps.Copy(all, over)
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	for _, id := range []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 10, 11} {
		if text := all[id]; text != nil {
			out = append(uleb(append(out, id), uint32(len(text))), text...)
		}
	}
	return out
}

// A module is refused if it is malformed or uses a feature that guests may not use. The error contains the reason.
func TestParse_RefusesUnsupportedModules(t *testing.T) {
	t.Parallel()
	end := []byte{0x0b}
	for name, c := range map[string]struct {
		text []byte
		err  error
		says string
	}{
		"nothing":                         {nil, wasmmeter.ErrMalformed, "version 1"},
		"a component":                     {[]byte{0, 'a', 's', 'm', 0x0d, 0, 1, 0}, wasmmeter.ErrUnsupported, "component"},
		"another version":                 {[]byte{0, 'a', 's', 'm', 2, 0, 0, 0}, wasmmeter.ErrMalformed, "version 1"},
		"too large":                       {make([]byte, 16<<20+1), wasmmeter.ErrLimitExceeded, "16777217 bytes"},
		"a section twice":                 {append(build(end, nil), 10, 1, 0), wasmmeter.ErrMalformed, "section 10"},
		"an unknown section":              {append(build(end, nil), 13, 1, 0), wasmmeter.ErrMalformed, "section 13"},
		"a section that is cut":           {build(end, nil)[:20], wasmmeter.ErrMalformed, "ends in the middle"},
		"a section with trailing bytes":   {build(end, parts{8: {0, 0}}), wasmmeter.ErrMalformed, "has bytes after its end"},
		"W6 a table of its own":           {build(end, parts{2: {1, 1, 'a', 1, 'b', 1, 0x70, 0, 1}}), wasmmeter.ErrUnsupported, `"b" of "a"`},
		"W6 a memory of others":           {build(end, parts{2: {1, 1, 'a', 1, 'b', 2, 0, 1}}), wasmmeter.ErrUnsupported, "not a function"},
		"W6 the name of our fuel":         {build(end, parts{7: append(append([]byte{1, 11}, "sluice.fuel"...), 3, 0)}), wasmmeter.ErrUnsupported, "name is reserved"},
		"W6 the fuel itself":              {build([]byte{0x42, 0, 0x24, 1, 0x0b}, nil), wasmmeter.ErrMalformed, "there is no global 1"},
		"W6 our local":                    {build([]byte{0x42, 0, 0x21, 0, 0x0b}, nil), wasmmeter.ErrMalformed, "no local 0"},
		"W6 our block":                    {build([]byte{0x0c, 1, 0x0b}, nil), wasmmeter.ErrMalformed, "no block 1"},
		"W6 our import":                   {build([]byte{0x42, 0, 0x10, 1, 0x0b}, nil), wasmmeter.ErrMalformed, "no function 1"},
		"W6 the type of our import":       {build([]byte{0x02, 1, 0x0b, 0x0b}, nil), wasmmeter.ErrMalformed, "no type 1"},
		"W4 a huge memory":                {build(end, parts{5: {1, 0, 0x81, 0x20}}), wasmmeter.ErrLimitExceeded, "4097 pages"},
		"W4 a huge table":                 {build(end, parts{4: {1, 0x70, 0, 0x81, 0x80, 0x40}}), wasmmeter.ErrLimitExceeded, "entries of a table"},
		"W4 two tables":                   {build(end, parts{4: {2, 0x70, 0, 1, 0x70, 0, 1}}), wasmmeter.ErrLimitExceeded, "2 tables"},
		"W4 a table that grows":           {build([]byte{0xd0, 0x70, 0x41, 1, 0xfc, 15, 0, 0x1a, 0x0b}, nil), wasmmeter.ErrUnsupported, "0xd0"},
		"W4 a table that is set":          {build([]byte{0x41, 0, 0x41, 0, 0x26, 0, 0x0b}, nil), wasmmeter.ErrUnsupported, "0x26"},
		"a table of references":           {build(end, parts{4: {1, 0x6f, 0, 1}}), wasmmeter.ErrUnsupported, "a table whose type is not functions"},
		"data that is dropped":            {build([]byte{0xfc, 9, 0, 0x0b}, nil), wasmmeter.ErrUnsupported, "0xfc 9"},
		"elements that are dropped":       {build([]byte{0xfc, 13, 0, 0x0b}, nil), wasmmeter.ErrUnsupported, "0xfc 13"},
		"threads":                         {build([]byte{0xfe, 0, 2, 0, 0x0b}, nil), wasmmeter.ErrUnsupported, "0xfe"},
		"exceptions":                      {build([]byte{0x08, 0, 0x0b}, nil), wasmmeter.ErrUnsupported, "0x8"},
		"tail calls":                      {build([]byte{0x12, 0, 0x0b}, nil), wasmmeter.ErrUnsupported, "0x12"},
		"W5 nested blocks":                {build(append(bytes.Repeat([]byte{0x02, 0x40}, 16_385), bytes.Repeat([]byte{0x0b}, 16_386)...), nil), wasmmeter.ErrLimitExceeded, "nested blocks"},
		"W5 locals":                       {build(nil, parts{10: {1, 6, 1, 0x81, 0x40, 0x7f, 0x0b, 0x0b}}), wasmmeter.ErrLimitExceeded, "8193 locals"},
		"W5 a body":                       {build(append(bytes.Repeat([]byte{0x01}, 1<<20), 0x0b), nil), wasmmeter.ErrLimitExceeded, "function 0 has"},
		"W5 parameters":                   {build(end, parts{1: append(append([]byte{1, 0x60, 65}, bytes.Repeat([]byte{0x7f}, 65)...), 0)}), wasmmeter.ErrLimitExceeded, "65 parameters"},
		"a count without elements":        {build(end, parts{1: {0xff, 0x1f}}), wasmmeter.ErrMalformed, "ends in the middle"},
		"a number of six bytes":           {build(end, parts{8: {0x80, 0x80, 0x80, 0x80, 0x80, 0}}), wasmmeter.ErrMalformed, "32 bits"},
		"a number of 33 bits":             {build(end, parts{8: {0x80, 0x80, 0x80, 0x80, 0x10}}), wasmmeter.ErrMalformed, "32 bits"},
		"a constant of 33 bits":           {build([]byte{0x41, 0x80, 0x80, 0x80, 0x80, 0x08, 0x1a, 0x0b}, nil), wasmmeter.ErrMalformed, "32 bits"},
		"an else without an if":           {build([]byte{0x05, 0x0b}, nil), wasmmeter.ErrMalformed, "else"},
		"code after the end":              {build([]byte{0x0b, 0x01}, nil), wasmmeter.ErrMalformed, "has code after its end"},
		"no end":                          {build([]byte{0x01}, nil), wasmmeter.ErrMalformed, "ends in the middle"},
		"a function without a body":       {build(end, parts{3: {2, 0, 0}}), wasmmeter.ErrMalformed, "2 functions have 1 bodies"},
		"a name that is not UTF-8":        {build(end, parts{7: {1, 1, 0xff, 0, 0}}), wasmmeter.ErrMalformed, "UTF-8"},
		"an export of a missing function": {build(end, parts{7: {1, 1, 'a', 0, 7}}), wasmmeter.ErrMalformed, `"a" refers to nothing`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := wasmmeter.Parse(c.text)
			if err == nil {
				_, err = m.Metered()
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("refused with %v, want %v and %q", err, c.err, c.says)
			}
		})
	}
}

// A stack trace of a metered module contains the names of the guest's functions.
func TestMetered_KeepsFunctionNames(t *testing.T) {
	t.Parallel()
	text := build([]byte{0x00, 0x0b}, parts{7: {1, 3, 'r', 'u', 'n', 0, 0}})
	names := append([]byte{0, 14, 4, 'n', 'a', 'm', 'e', 1, 7, 1, 0, 4}, "boom"...)
	e := newEngine(t, wazero.NewRuntimeConfigInterpreter())
	in, err := e.Instantiate(t.Context(), meterAt(t, append(text, names...), wasmmeter.Grain))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.ExportedFunction("run").Call(t.Context()); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("%v; want boom in the trace", err)
	}
}

// FuzzMetered checks that the engine accepts a metered module if and only if it accepts the original.
func FuzzMetered(f *testing.F) {
	f.Add(build([]byte{0x0b}, nil))
	f.Add(build([]byte{0x03, 0x40, 0x41, 1, 0x0d, 0, 0x0b, 0x41, 1, 0x40, 0, 0x1a, 0x0b}, parts{4: {1, 0x70, 0, 1}, 9: {1, 0, 0x41, 0, 0x0b, 1, 0}}))
	f.Add(wasm([]function{{6, []node{loop{5, 3, []node{fill{number(0), number(1), number(64)}}}, choice{local(1), []node{store{number(4), number(2)}}, nil}}}}))
	f.Fuzz(func(t *testing.T, text []byte) {
		out, err := meterModule(text)
		if err != nil {
			return
		}
		e := newEngine(t, wazero.NewRuntimeConfigInterpreter())
		_, plain := e.CompileModule(t.Context(), text)
		if plain != nil && strings.Contains(plain.Error(), "custom section") {
			return // metering drops custom sections
		}
		_, now := e.CompileModule(t.Context(), out)
		if (plain == nil) != (now == nil) {
			t.Errorf("original: %v\nmetered: %v", plain, now)
		}
	})
}
