package catalogpages

import (
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// JSON writes the catalog as one JSON document: an object with `made`, `servers` and `tools`. Servers and tools are
// sorted by name. Member names are in camel case, enumerations in lower case, digests in hexadecimal, and times in UTC.
// A tool's definition has the server's content with different white space. Hidden characters, and characters with a
// meaning in HTML, are written as JSON escapes. The error can be [ErrTwice].
func JSON(w io.Writer, c Catalogue) error {
	in, err := sortCatalog(c)
	if err != nil {
		return err
	}
	enc := jsontext.NewEncoder(safetext.NewWriter(w), jsontext.WithIndent("  "), jsontext.EscapeForHTML(true), jsontext.EscapeForJS(true),
		jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true), json.Deterministic(true))
	if err := writeDocument(enc, in); err != nil {
		return fmt.Errorf("write the catalogue: %w", err)
	}
	return nil
}

// writeDocument writes one server or tool at a time, so that the whole document is never in memory.
func writeDocument(enc *jsontext.Encoder, in *sortedCatalog) error {
	d := &document{enc: enc}
	d.token(jsontext.BeginObject)
	d.token(jsontext.String("made"))
	d.value(in.readAt.Truncate(time.Second))
	d.token(jsontext.String("servers"))
	d.token(jsontext.BeginArray)
	for _, s := range in.servers {
		d.value(jsonServerOf(s))
	}
	d.token(jsontext.EndArray)
	d.token(jsontext.String("tools"))
	d.token(jsontext.BeginArray)
	for t := range in.allTools {
		d.value(jsonToolOf(t))
	}
	d.token(jsontext.EndArray)
	d.token(jsontext.EndObject)
	return d.err
}

// document is a JSON document that is being written. err is the first error. After the first error, nothing more is
// written.
type document struct {
	enc *jsontext.Encoder
	err error
}

func (d *document) token(t jsontext.Token) {
	if d.err == nil {
		d.err = d.enc.WriteToken(t)
	}
}

func (d *document) value(v any) {
	if d.err == nil {
		d.err = json.MarshalEncode(d.enc, v)
	}
}

// digest returns a digest in hexadecimal, or "" for nil.
func digest(sum []byte) string { return hex.EncodeToString(sum) }

func digests(sums [][]byte) []string {
	var out []string
	for _, sum := range sums {
		out = append(out, digest(sum))
	}
	return out
}

// Rounded returns a confidence or weight rounded to two decimal places. More places would suggest a higher precision
// than the number has.
func Rounded(f float64) float64 {
	return math.Round(100*f) / 100
}
