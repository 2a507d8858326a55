package catalogpages

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// writeIndex writes the search index. The index is a script, because a page that is opened from a disk can't load other
// kinds of files. It contains only arrays, so that an untrusted name can't become the name of a property:
//
// sluiceCatalogue = {version, servers: [[name, stem]], tools: [[server, name, bits, summary, stem]]}
//
// A tool's server is an index into servers. The bits are the category (3 bits), the risk (3 bits) and the marks. The
// stem is omitted if it equals the name. Hidden characters are replaced with escapes.
func (s *site) writeIndex(to io.Writer) error {
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "\"use strict\";\nconst sluiceCatalogue = {version: %s, servers: [\n", indexVersion)
	for _, server := range s.servers {
		if err := writeEntry(w, []any{shown(server.GetName()), server.stem}); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "], tools: [")
	for i, server := range s.servers {
		for _, t := range server.tools {
			if err := writeEntry(w, indexEntry(i, t)); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(w, "]};")
	return w.Flush()
}

func indexEntry(server int, t *tool) []any {
	c := t.GetClassification()
	category := slices.Index(slugs(), categoryOf(c.GetCategory()).Slug)
	risk := slices.IndexFunc(risks[:], func(r risk) bool { return r.Slug == riskOf(c.GetRisk()).Slug })
	out := []any{server, shown(t.GetName()), category | risk<<3 | int(marksOf(t))<<6, shown(summary(t.GetDescription()))}
	if t.stem != t.GetName() {
		out = append(out, t.stem)
	}
	return out
}

// writeEntry writes an array on one line. It escapes characters that have a meaning in HTML or JavaScript.
func writeEntry(w io.Writer, entry []any) error {
	if err := json.MarshalWrite(w, entry, jsontext.EscapeForHTML(true), jsontext.EscapeForJS(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, ",")
	return err
}
