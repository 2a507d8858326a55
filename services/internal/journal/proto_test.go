package journal_test

import (
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// unsentFields contains the fields of a record that the protobuf message omits, each with the reason.
var unsentFields = map[string]string{
	"CRC": "it is over the bytes of the line, and is checked where the files are",
}

// unsetFields lists fields of the message that concern budgets. This version of the gateway never sets them.
var unsetFields = []protoreflect.Name{"settled", "replay_from"}

// storedRecord returns the record in testdata, in which every field is set.
func storedRecord(t *testing.T) *journal.Record {
	t.Helper()
	raw, err := os.ReadFile("testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	rec := new(journal.Record)
	if err := json.Unmarshal(raw, rec, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	return rec
}

// leaves calls the function visit for each field that is not a struct with fields of its own. It passes the field's
// path to visit.
func leaves(v reflect.Value, path string, visit func(path string, field reflect.Value)) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		field, at := v.FieldByIndex(f.Index), path+f.Name
		switch {
		case f.Anonymous: // visit its fields as fields of v
		case field.Kind() == reflect.Struct && field.Type() != reflect.TypeFor[time.Time]():
			leaves(field, at+".", visit)
		case field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct && field.Len() > 0:
			leaves(field.Index(0), at+".", visit)
		default:
			visit(at, field)
		}
	}
}

// ToProto copies every field of a record, except those in unsentFields, to the right field of the message.
func TestToProto_ContainsEveryField(t *testing.T) {
	t.Parallel()
	full := journal.ToProto(storedRecord(t))
	raw, err := os.ReadFile("testdata/record.grpc.json")
	if err != nil {
		t.Fatal(err)
	}
	want := new(gatewayv1.Record)
	if err := protojson.Unmarshal(raw, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, full, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	contract := full.ProtoReflect().Descriptor().Fields()
	for i := range contract.Len() {
		if f := contract.Get(i); full.ProtoReflect().Has(f) == slices.Contains(unsetFields, f.Name()) {
			t.Errorf("the contract's %s is written: %t", f.Name(), full.ProtoReflect().Has(f))
		}
	}
	var paths []string
	leaves(reflect.ValueOf(storedRecord(t)).Elem(), "", func(path string, field reflect.Value) {
		paths = append(paths, path)
		if field.IsZero() {
			t.Errorf("the record has no %s", path)
		}
	})
	for _, path := range paths {
		without := storedRecord(t)
		leaves(reflect.ValueOf(without).Elem(), "", func(at string, field reflect.Value) {
			if at == path {
				field.SetZero()
			}
		})
		if lost, meant := proto.Equal(full, journal.ToProto(without)), unsentFields[path] != ""; lost != meant {
			t.Errorf("%s is lost on the way: %t, and named as such: %t", path, lost, meant)
		}
	}
	for path := range unsentFields {
		if !slices.Contains(paths, path) {
			t.Errorf("%s is no field", path)
		}
	}
}

func TestFromProto_RestoresRecord(t *testing.T) {
	t.Parallel()
	want := storedRecord(t)
	got := journal.FromProto(journal.ToProto(want))
	want.CRC = ""
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("(-sent +received):\n%s", diff)
	}
	if diff := cmp.Diff(journal.Record{Kind: journal.KindIntent, Time: want.Time}, journal.FromProto(journal.ToProto(&journal.Record{Kind: journal.KindIntent, Time: want.Time}))); diff != "" {
		t.Errorf("an empty record (-sent +received):\n%s", diff)
	}
}

// In the message for a recovery record, Count is the number of lost records, which may be 0. In the message for every
// other record, Count is at least 1.
func TestToProto_Count(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind          journal.Kind
		written, want int64
	}{
		{journal.KindRecovery, 0, 0},
		{journal.KindRecovery, 1, 1},
		{journal.KindRecovery, 9, 9},
		{journal.KindRefusal, 0, 1},
		{journal.KindAdmission, 9, 9},
		{journal.KindPassed, 9, 9},
		{journal.KindIntent, 0, 1},
	} {
		if got := journal.ToProto(&journal.Record{Kind: tt.kind, Count: tt.written}).GetCount(); got != tt.want {
			t.Errorf("%s with %d counts %d, want %d", tt.kind, tt.written, got, tt.want)
		}
	}
}
