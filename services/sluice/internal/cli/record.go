package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// camelCase converts a name to camel case. The command line prints names in camel case, like the JSON of MCP and gRPC.
// The journal's files contain names with underscores, such as decision_id.
func camelCase(name string) string {
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:min(1, len(word))]) + word[min(1, len(word)):]
	}
	return strings.Join(words, "")
}

// jsonRecord is a record whose JSON has the same fields as the journal's files, with names in camel case.
type jsonRecord struct{ rec *gatewayv1.Record }

// MarshalJSON implements [json.Marshaler].
func (r jsonRecord) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(journal.FromProto(r.rec))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	from, to := jsontext.NewDecoder(bytes.NewReader(raw)), jsontext.NewEncoder(&out)
	for {
		in, place := from.StackIndex(from.StackDepth())
		token, err := from.ReadToken()
		if errors.Is(err, io.EOF) {
			return bytes.TrimSpace(out.Bytes()), nil
		}
		if err != nil {
			return nil, err
		}
		if in == '{' && place%2 == 0 && token.Kind() == '"' {
			token = jsontext.String(camelCase(token.String()))
		}
		if err := to.WriteToken(token); err != nil {
			return nil, err
		}
	}
}

func (t *tool) printDetails(records []*gatewayv1.Record) error {
	for i, r := range records {
		if i > 0 {
			fmt.Fprintln(t.out)
		}
		if err := t.table([]string{"FIELD", "VALUE"}, recordFields(reflect.ValueOf(journal.FromProto(r)))); err != nil {
			return err
		}
	}
	return nil
}

// recordFields returns the names and values of the fields of a struct in a record, without zero values. The names are
// the names in the JSON output. For a slice of structs, it returns one row for each element.
func recordFields(part reflect.Value) [][]string {
	var rows [][]string
	for i := range part.NumField() {
		name, _, _ := strings.Cut(part.Type().Field(i).Tag.Get("json"), ",")
		name = camelCase(name)
		value := part.Field(i)
		switch {
		case value.IsZero():
		case part.Type().Field(i).Anonymous:
			rows = append(rows, recordFields(value)...)
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
			for j := range value.Len() {
				rows = append(rows, []string{name, formatValue(value.Index(j))})
			}
		default:
			rows = append(rows, []string{name, formatValue(value)})
		}
	}
	return rows
}

func formatValue(value reflect.Value) string {
	switch v := value.Interface().(type) {
	case time.Time:
		return v.Local().Format(time.RFC3339Nano)
	case []string:
		return strings.Join(v, ",")
	case journal.Rule:
		return v.Document + "/" + v.Rule
	}
	if value.Kind() != reflect.Struct {
		return fmt.Sprint(value)
	}
	var pairs []string
	for _, f := range recordFields(value) {
		if strings.ContainsAny(f[1], ` ="`) { // an unquoted value could look like another pair
			f[1] = strconv.Quote(f[1])
		}
		pairs = append(pairs, f[0]+"="+f[1])
	}
	return strings.Join(pairs, " ")
}
