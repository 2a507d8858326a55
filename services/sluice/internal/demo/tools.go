package demo

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// These are the names of the tools, grouped by the effect of a call.
const (
	// ListNotes, GetNote and ListAccounts only read data.
	ListNotes    = "list_notes"
	GetNote      = "get_note"
	ListAccounts = "list_accounts"
	// CreateNote writes data. It adds a note and changes no other note.
	CreateNote = "create_note"
	// RunReport executes a task. It computes a report, and also writes a note if the caller requests one.
	RunReport = "run_report"
	// DeleteNote destroys data, because a deleted note can't be restored.
	DeleteNote = "delete_note"
	// Refund is a financial tool, because each call moves money.
	Refund = "refund"
)

func (s *Server) addTools() {
	addTool(s, mcp.Tool{
		Name: ListNotes, Title: "List notes",
		Description: "Lists ids and titles of notes in the order in which they were written, a page at a time.",
		InputSchema: schema(`{"type": "object", "properties": {
			"offset": {"type": "integer", "minimum": 0, "maximum": 100000, "default": 0, "description": "How many notes to skip."},
			"limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100, "description": "How many notes to return at most."}
		}, "additionalProperties": false}`),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
	}, s.listNotes)
	addTool(s, mcp.Tool{
		Name: GetNote, Title: "Read a note",
		Description: "Returns one note with its title and body.",
		InputSchema: noteIDSchema(),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
	}, s.getNote)
	addTool(s, mcp.Tool{
		Name: ListAccounts, Title: "List accounts",
		Description: "Lists every account with its balance: the merchant, who pays refunds, and the customers.",
		InputSchema: schema(`{"type": "object", "additionalProperties": false}`),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
	}, s.listAccounts)
	addTool(s, mcp.Tool{
		Name: CreateNote, Title: "Write a note",
		Description: "Writes a new note and returns it with its id. Existing notes are not changed.",
		InputSchema: schema(`{"type": "object", "properties": {
			"title": {"type": "string", "minLength": 1, "maxLength": 200, "description": "One line that says what the note is about."},
			"body": {"type": "string", "maxLength": 2000, "default": "", "description": "The text, up to 2000 characters."}
		}, "required": ["title"], "additionalProperties": false}`),
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)},
	}, s.createNote)
	s.addCostlyTools()
}

func (s *Server) addCostlyTools() {
	addTool(s, mcp.Tool{
		Name: RunReport, Title: "Run a report",
		Description: "Reads all notes, counts their words and computes a fingerprint. Keeps the result as a note if requested. Reports its progress if requested.",
		InputSchema: schema(`{"type": "object", "properties": {
			"top": {"type": "integer", "minimum": 1, "maximum": 100, "default": 5, "description": "How many of the most frequent words to return."},
			"save": {"type": "boolean", "default": false, "description": "Whether to keep the result as a new note."}
		}, "additionalProperties": false}`),
		OutputSchema: schema(reportSchema),
		Annotations:  &mcp.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)},
	}, s.runReport)
	addTool(s, mcp.Tool{
		Name: DeleteNote, Title: "Delete a note",
		Description: "Deletes one note and returns its content.",
		InputSchema: noteIDSchema(),
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)},
	}, s.deleteNote)
	addTool(s, mcp.Tool{
		Name: Refund, Title: "Refund a customer",
		Description: "Moves money from the merchant's account to a customer's account. Each call moves the amount again.",
		InputSchema: schema(`{"type": "object", "properties": {
			"account": {"type": "string", "minLength": 1, "maxLength": 64, "description": "The customer's account, such as ana."},
			"amount": {"type": "string", "pattern": ` + quote(amountPattern) + `, "description": "A decimal above 0, such as 12.50."},
			"reason": {"type": "string", "maxLength": 200, "description": "The reason for the refund, for the person who approves it."}
		}, "required": ["account", "amount"], "additionalProperties": false}`),
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)},
	}, s.refund)
}

// addTool registers one tool. Before the handler runs, the SDK checks the arguments against the tool's input schema. If
// the arguments are invalid, the result is a failed call (isError).
func addTool[In, Out any](s *Server, t mcp.Tool, h mcp.ToolHandlerFor[In, Out]) {
	s.calls.addTool(t.Name)
	mcp.AddTool(s.mcp, &t, h)
}

func schema(text string) jsontext.Value { return jsontext.Value(text) }

func quote(s string) string {
	text, _ := jsontext.AppendQuote(nil, s) // fails only for a string that is not UTF-8
	return string(text)
}

func noteIDSchema() jsontext.Value {
	return schema(`{"type": "object", "properties": {
		"id": {"type": "string", "minLength": 1, "maxLength": 64, "description": "The note's id, such as note-1."}
	}, "required": ["id"], "additionalProperties": false}`)
}

type (
	listNotesInput struct {
		Offset int `json:"offset"`
		Limit  int `json:"limit"`
	}
	listNotesOutput struct {
		Notes []noteTitle `json:"notes"`
		Total int         `json:"total" jsonschema:"how many notes there are in all"`
	}
	noteTitle struct {
		ID    string `json:"id"`
		Title string `json:"title"`
	}
	noteIDInput struct {
		ID string `json:"id"`
	}
	listAccountsOutput struct {
		Accounts []account `json:"accounts"`
	}
	createNoteInput struct {
		Title string `json:"title"`
		Body  string `json:"body"`
	}
	runReportInput struct {
		Top  int  `json:"top"`
		Save bool `json:"save"`
	}
	refundInput struct {
		Account string `json:"account"`
		Amount  string `json:"amount"`
		Reason  string `json:"reason"`
	}
	refundOutput struct {
		Amount string  `json:"amount" jsonschema:"what was moved"`
		From   account `json:"from" jsonschema:"the merchant's account afterwards"`
		To     account `json:"to" jsonschema:"the customer's account afterwards"`
		Reason string  `json:"reason,omitempty"`
	}
)

func (s *Server) listNotes(_ context.Context, _ *mcp.CallToolRequest, in listNotesInput) (*mcp.CallToolResult, listNotesOutput, error) {
	notes, total := s.book.page(in.Offset, in.Limit)
	out := listNotesOutput{Notes: make([]noteTitle, 0, len(notes)), Total: total}
	for _, n := range notes {
		out.Notes = append(out.Notes, noteTitle{ID: n.ID, Title: n.Title})
	}
	return nil, out, nil
}

func (s *Server) getNote(_ context.Context, _ *mcp.CallToolRequest, in noteIDInput) (*mcp.CallToolResult, note, error) {
	n, err := s.book.get(in.ID)
	return nil, n, err
}

func (s *Server) listAccounts(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, listAccountsOutput, error) {
	return nil, listAccountsOutput{Accounts: s.ledger.accounts()}, nil
}

func (s *Server) createNote(_ context.Context, _ *mcp.CallToolRequest, in createNoteInput) (*mcp.CallToolResult, note, error) {
	n, err := s.book.create(in.Title, in.Body)
	return nil, n, err
}

func (s *Server) deleteNote(_ context.Context, _ *mcp.CallToolRequest, in noteIDInput) (*mcp.CallToolResult, note, error) {
	n, err := s.book.remove(in.ID)
	return nil, n, err
}

func (s *Server) refund(_ context.Context, _ *mcp.CallToolRequest, in refundInput) (*mcp.CallToolResult, refundOutput, error) {
	cents, err := parseAmount(in.Amount)
	if err != nil {
		return nil, refundOutput{}, err
	}
	from, to, err := s.ledger.refund(in.Account, cents)
	if err != nil {
		return nil, refundOutput{}, err
	}
	return nil, refundOutput{Amount: formatCents(cents), From: from, To: to, Reason: in.Reason}, nil
}

// runReport encodes its result itself. For typed handlers, the SDK decodes the result, which would convert the
// fingerprint to a double.
func (s *Server) runReport(ctx context.Context, req *mcp.CallToolRequest, in runReportInput) (*mcp.CallToolResult, any, error) {
	notes, _ := s.book.page(0, s.cfg.MaxNotes)
	r, err := writeReport(ctx, notes, in.Top, progressTo(req))
	if err != nil {
		return nil, nil, err
	}
	if in.Save {
		kept, err := s.book.create("Report", r.summary())
		if err != nil {
			return nil, nil, fmt.Errorf("save the report: %w", err)
		}
		r.SavedAs = kept.ID
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, nil, fmt.Errorf("write the report: %w", err)
	}
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: string(text)}},
		StructuredContent: jsontext.Value(text),
	}, nil, nil
}

// progressTo returns a function that sends progress notifications if the caller sent a progress token.
func progressTo(req *mcp.CallToolRequest) progressFunc {
	token := req.Params.GetProgressToken()
	return func(ctx context.Context, done, all int) error {
		if token == nil {
			return ctx.Err()
		}
		return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(done), Total: float64(all), Message: "reading notes",
		})
	}
}
