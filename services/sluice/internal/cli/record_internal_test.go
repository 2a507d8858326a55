package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// sampleFolder is the directory that contains a record with every field, both in the form of the journal and in the
// form of gRPC.
const sampleFolder = "../../../internal/journal/testdata/"

func readSample(t *testing.T) *gatewayv1.Record {
	t.Helper()
	raw, err := os.ReadFile(sampleFolder + "record.grpc.json")
	if err != nil {
		t.Fatal(err)
	}
	rec := new(gatewayv1.Record)
	if err := protojson.Unmarshal(raw, rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// A record that is printed as JSON equals the same record in the journal's file. Two differences are allowed: the
// checksum is missing, and names are spelled differently.
func TestJSONRecord_EqualsTheJournalsRecord(t *testing.T) {
	t.Parallel()
	var want, got map[string]any
	raw, err := os.ReadFile(sampleFolder + "record.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	delete(want, "crc") // the checksum of the line in the file
	toCamelCase(want)
	var out bytes.Buffer
	if err := (&tool{self: "sluice", out: &out}).printLine(jsonRecord{readSample(t)}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-journal +printed):\n%s", diff)
	}
}

// The readable output of a record has all fields of the JSON output, with the same names.
func TestPrintDetails_PrintsAllFields(t *testing.T) {
	t.Parallel()
	rec := readSample(t)
	var raw, text bytes.Buffer
	if err := (&tool{self: "sluice", out: &raw}).printLine(jsonRecord{rec}); err != nil {
		t.Fatal(err)
	}
	if err := (&tool{self: "sluice", out: &text}).printDetails([]*gatewayv1.Record{rec}); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	for name := range fields {
		if !strings.Contains(text.String(), "\n"+name+" ") {
			t.Errorf("the text has no field %s", name)
		}
	}
	for _, line := range []string{
		"rule               team/tools.create_issue",
		"chain              tenant=acme-east subject=planner agent=plan owner=ben person=benno tokenId=planner-token issuer=partner client=planner-client",
		"limits             document=limits rule=issues bucket=b1 kind=gcra max=10 windowS=60.5 burst=3 per=session,tool cap=true cost=2 " +
			"onError=allow settle=/structuredContent/total remaining=7 sessionKey=run",
		"definitionDigest   " + strings.Repeat("22", 32),
		"latencyMs          12.345",
	} {
		if !strings.Contains(text.String(), line+"\n") {
			t.Errorf("the line %q is not in\n%s", line, text.String())
		}
	}
}

// A count of 1 is printed only for the kinds of records that have a count, such as a recovery.
func TestPrintDetails_PrintsCounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind        gatewayv1.RecordKind
		count, want int64
	}{
		{gatewayv1.RecordKind_RECORD_KIND_INTENT, 1, 0},
		{gatewayv1.RecordKind_RECORD_KIND_REFUSAL, 9, 9},
		{gatewayv1.RecordKind_RECORD_KIND_ADMISSION, 1, 1},
		{gatewayv1.RecordKind_RECORD_KIND_RECOVERY, 1, 1},
		{gatewayv1.RecordKind_RECORD_KIND_RECOVERY, 0, 0},
	} {
		if got := journal.FromProto(&gatewayv1.Record{Kind: tt.kind, Count: tt.count}).Count; got != tt.want {
			t.Errorf("%v with %d prints %d, want %d", tt.kind, tt.count, got, tt.want)
		}
	}
}

func toCamelCase(value any) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			toCamelCase(one)
		}
	case map[string]any:
		for name, one := range v {
			toCamelCase(one)
			delete(v, name)
			v[camelCase(name)] = one
		}
	}
}

func TestCamelCase(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{"": "", "seq": "seq", "decision_id": "decisionId", "latency_ms": "latencyMs", "a_b_c": "aBC"} {
		if got := camelCase(from); got != want {
			t.Errorf("%s is printed as %s, want %s", from, got, want)
		}
	}
}
