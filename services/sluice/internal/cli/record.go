package cli

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// printDetails prints everything that records say, a line a field.
func (t *tool) printDetails(records []*gatewayv1.Record) error {
	for i, r := range records {
		if i > 0 {
			fmt.Fprintln(t.out)
		}
		if err := t.table([]string{"FIELD", "VALUE"}, fields(reflect.ValueOf(journal.FromProto(r)))); err != nil {
			return err
		}
	}
	return nil
}

// fields are the names and values of a part of a record, under the names of its
// JSON, without those that are empty. A list of parts has a row for each.
func fields(part reflect.Value) [][]string {
	var rows [][]string
	for i := range part.NumField() {
		name, _, _ := strings.Cut(part.Type().Field(i).Tag.Get("json"), ",")
		value := part.Field(i)
		switch {
		case value.IsZero():
		case part.Type().Field(i).Anonymous:
			rows = append(rows, fields(value)...)
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
			for j := range value.Len() {
				rows = append(rows, []string{name, words(value.Index(j))})
			}
		default:
			rows = append(rows, []string{name, words(value)})
		}
	}
	return rows
}

// words is a value in one line.
func words(value reflect.Value) string {
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
	for _, f := range fields(value) {
		if strings.ContainsAny(f[1], ` ="`) { // it must not look like another pair
			f[1] = strconv.Quote(f[1])
		}
		pairs = append(pairs, f[0]+"="+f[1])
	}
	return strings.Join(pairs, " ")
}
