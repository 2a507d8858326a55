package catalogpages

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// writeIndex writes what the search goes through, as a script: a page that is opened from a
// disk may load no other file. It is made of arrays alone, for a name of a stranger must
// never be a property's:
//
//	sluiceCatalogue = {version, servers: [[name, stem]], tools: [[server, name, bits, summary, stem]]}
//
// A server of a tool is its number in servers. The bits are the category (3), the risk
// (3) and the marks. The stem is left out where it is the name. Texts are such as people
// may be shown.
func (s *site) writeIndex(to io.Writer) error {
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "\"use strict\";\nconst sluiceCatalogue = {version: %s, servers: [\n", layout)
	for _, of := range s.servers {
		if err := writeEntry(w, []any{shown(of.GetName()), of.stem}); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "], tools: [")
	for i, of := range s.servers {
		for _, t := range of.tools {
			if err := writeEntry(w, indexEntry(i, t)); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(w, "]};")
	return w.Flush()
}

// indexEntry is a tool in the search index.
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

// writeEntry writes an array in a line. What HTML or JavaScript could take for something else
// than a part of a text is escaped.
func writeEntry(w io.Writer, entry []any) error {
	if err := json.MarshalWrite(w, entry, jsontext.EscapeForHTML(true), jsontext.EscapeForJS(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, ",")
	return err
}
