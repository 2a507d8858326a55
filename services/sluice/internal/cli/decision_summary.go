package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// A summary must fit on a terminal with 80 columns and 24 lines, including two shell prompts.
const (
	summaryWidth    = 80
	maxSummaryRows  = 20
	maxSummaryItems = 3
)

// printSummary prints the fields of all records of a decision. If the records differ in a field, it prints the newest
// value.
func (t *tool) printSummary(records []*gatewayv1.Record) error {
	rows := summaryOfDecision(records)
	nameWidth := 0
	for _, row := range rows {
		nameWidth = max(nameWidth, len(row[0])+2)
	}
	for _, row := range rows {
		value := []rune(safetext.Line(row[1]))
		if maxLength := summaryWidth - nameWidth; len(value) > maxLength {
			value = append(value[:maxLength-1], '…')
		}
		t.printf("%-*s%s", nameWidth, row[0], string(value))
	}
	t.printf("records: %d; --all prints every field of each record", len(records))
	return nil
}

func summaryOfDecision(records []*gatewayv1.Record) [][]string {
	var all journal.Record
	var rows [][]string
	add := func(name, value string) {
		if value != "" && len(rows) < maxSummaryRows {
			rows = append(rows, []string{name, value})
		}
	}
	for _, r := range records {
		one := journal.FromProto(r)
		mergeRecord(&all, &one)
	}
	if len(records) > 0 {
		last := records[len(records)-1]
		add("decision", all.DecisionID)
		add("time", all.Time.Local().Format(time.DateTime))
		add("result", resultName(last))
		add("reason", all.Message)
		add("call", strings.TrimSpace(all.Server+" "+all.Method+" "+all.Tool))
	}
	add("caller", all.Subject+withPrefix(" of ", all.Tenant)+withPrefix(", agent ", all.Agent))
	for _, p := range all.Chain[:min(len(all.Chain), maxSummaryItems)] {
		add("made for", p.Subject+withPrefix(", agent ", p.Agent))
	}
	add("effect", all.Effect)
	if all.Rule.Document != "" {
		add("rule", all.Rule.Document+"/"+all.Rule.Rule)
	}
	if would := all.Observed; would != (journal.Observed{}) {
		add("observed", observedName(journal.ToProto(&journal.Record{Observed: would})))
	}
	add("tool is", strings.TrimPrefix(all.Category+withPrefix(", risk ", all.Risk), ", "))
	add("approval", all.ApprovalID)
	for _, v := range all.Votes[:min(len(all.Votes), maxSummaryItems)] {
		add("vote", fmt.Sprintf("%s by %s", v.Verdict, v.Subject))
	}
	for _, l := range all.Limits[:min(len(all.Limits), maxSummaryItems)] {
		add("limit", fmt.Sprintf("%s/%s: at most %s in %gs", l.Document, l.Rule, l.Max, l.WindowS))
	}
	if all.LatencyMS > 0 {
		add("took", fmt.Sprintf("%.1f ms", all.LatencyMS))
	}
	if all.RequestBytes+all.ResultBytes > 0 {
		add("bytes", fmt.Sprintf("%d sent, %d back", all.RequestBytes, all.ResultBytes))
	}
	var redacted []string
	for _, r := range all.Redacted {
		redacted = append(redacted, fmt.Sprintf("%d %s", r.Count, r.Name))
	}
	add("redacted", strings.Join(redacted, ", "))
	add("arguments", recordedSummary(all.Recorded))
	add("run", all.Run)
	add("trace", all.TraceID)
	return rows
}

// recordedSummary describes the stored copy of a call's arguments. It returns "" if no copy is stored.
func recordedSummary(r journal.Recorded) string {
	if r == (journal.Recorded{}) {
		return ""
	}
	text := fmt.Sprintf("%d bytes are recorded", r.Bytes)
	if r.IsRedacted {
		text += ", with values replaced"
	}
	return text + "; --arguments prints them"
}

// withPrefix returns a string with a prefix, or "" if the string is empty.
func withPrefix(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

func mergeRecord(all, r *journal.Record) {
	if all.Time.IsZero() {
		all.Time = r.Time
	}
	all.DecisionID, all.TraceID = cmp.Or(all.DecisionID, r.DecisionID), cmp.Or(all.TraceID, r.TraceID)
	all.Tenant, all.Subject, all.Agent = cmp.Or(all.Tenant, r.Tenant), cmp.Or(all.Subject, r.Subject), cmp.Or(all.Agent, r.Agent)
	all.Server, all.Method, all.Tool, all.Run = cmp.Or(all.Server, r.Server), cmp.Or(all.Method, r.Method), cmp.Or(all.Tool, r.Tool), cmp.Or(all.Run, r.Run)
	all.Message, all.Effect, all.Rule = cmp.Or(r.Message, all.Message), cmp.Or(r.Effect, all.Effect), cmp.Or(r.Rule, all.Rule)
	all.Observed = cmp.Or(all.Observed, r.Observed)
	all.Category, all.Risk, all.ApprovalID = cmp.Or(r.Category, all.Category), cmp.Or(r.Risk, all.Risk), cmp.Or(r.ApprovalID, all.ApprovalID)
	all.LatencyMS, all.Recorded = cmp.Or(r.LatencyMS, all.LatencyMS), cmp.Or(all.Recorded, r.Recorded)
	all.RequestBytes, all.ResultBytes = cmp.Or(r.RequestBytes, all.RequestBytes), cmp.Or(r.ResultBytes, all.ResultBytes)
	if len(r.Chain) > 0 {
		all.Chain = r.Chain
	}
	if len(r.Votes) > 0 {
		all.Votes = r.Votes
	}
	if len(r.Limits) > 0 {
		all.Limits = r.Limits
	}
	if len(r.Redacted) > 0 {
		all.Redacted = r.Redacted
	}
}
