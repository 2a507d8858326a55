package agent

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
)

// runEffect carries out an effect for the guest and returns the result. If it returns an error, the turn ends.
func (a *Agent) runEffect(t *turn, envelope abi.GuestEnvelope) (abi.HostEnvelope, error) {
	in := abi.HostEnvelope{Kind: abi.Result}
	var err error
	switch envelope.Kind {
	case abi.Tool:
		return a.callTool(t, envelope)
	case abi.FS:
		in.Result, err = a.fileEffect(envelope, time.Now())
	case abi.Todo:
		err = a.todoEffect(envelope)
	case abi.Emit:
		t.progress(envelope.Text)
	case abi.Sleep:
		d := time.Duration(min(max(envelope.Milliseconds, 0), maxSleep.Milliseconds()+1)) * time.Millisecond
		if t.sleepTime += d; t.sleepTime > maxSleep {
			err = errSleepTooLong
		} else if err := a.sleep(t, d); err != nil {
			return in, err
		}
	case abi.Model:
		return a.askModel(t, envelope)
	case abi.Tools:
		return a.listTools(t)
	}
	if err != nil {
		in.Error = &abi.Error{Code: GuestErrorCode(err), Message: err.Error()}
	}
	return in, nil
}

// GuestErrorCode returns the guest's error code for an error that concerns files, todos, results or sleep. It returns
// `failed` for all other errors.
func GuestErrorCode(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{files.ErrPath, "path_invalid"}, {files.ErrNotFound, "file_unknown"}, {files.ErrTextNotFound, "edit_target_unknown"},
		{errResultTooLarge, "too_large"}, {errSleepTooLong, "sleep_spent"}, {ErrTodosFull, "todos_full"}, {files.ErrAmbiguous, "edit_ambiguous"}, {files.ErrFull, "files_full"}, {ErrTodosInvalid, "todos_invalid"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return "failed"
}

func (a *Agent) fileEffect(envelope abi.GuestEnvelope, now time.Time) (result jsontext.Value, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var answer any
	switch envelope.Op {
	case "read_file":
		var text string
		if text, err = a.files.Read(envelope.Path, envelope.Offset, envelope.Limit); len(text) > maxResultBytes {
			err = errResultTooLarge
		}
		answer = text
	case "write_file":
		_, err = a.files.Write(envelope.Path, envelope.Content, now)
	case "edit_file":
		_, _, err = a.files.Edit(envelope.Path, envelope.OldString, envelope.NewString, envelope.ReplaceAll, now)
	case "list_files":
		answer, err = a.files.Paths(envelope.Path)
	default:
		err = fmt.Errorf("%q %w", envelope.Op, errors.New("is not an operation on files"))
	}
	if err != nil || answer == nil {
		return nil, err
	}
	if result, err = json.Marshal(answer); len(result) > 4*maxResultBytes { // JSON escapes may make the content longer
		return nil, errResultTooLarge
	}
	return result, err
}

func (a *Agent) todoEffect(envelope abi.GuestEnvelope) error {
	todos := make([]*wasmagentv1.Todo, 0, len(envelope.Todos))
	for _, t := range envelope.Todos {
		todos = append(todos, &wasmagentv1.Todo{Content: t.Content, Status: TodoStatus(t.Status)})
	}
	if err := checkTodos(todos); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.todos = todos
	return nil
}

// TodoStatus returns the status with the given name. It returns the unspecified status if the name is unknown.
func TodoStatus(name string) wasmagentv1.TodoStatus {
	return map[string]wasmagentv1.TodoStatus{
		"pending": wasmagentv1.TodoStatus_TODO_STATUS_PENDING, "in_progress": wasmagentv1.TodoStatus_TODO_STATUS_IN_PROGRESS,
		"completed": wasmagentv1.TodoStatus_TODO_STATUS_COMPLETED,
	}[name]
}

// sleep waits until d has passed, the turn ends, or the turn's caller gives up.
func (a *Agent) sleep(t *turn, d time.Duration) error {
	a.setWaiting(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_EFFECT})
	defer a.setWaiting(t, nil)
	return a.awaitCall(t, func() {
		select {
		case <-time.After(d):
		case <-t.ctx.Done():
		case <-t.callerCtx.Done():
		}
	})
}

// setWaiting marks the turn as waiting, and records why it waits. If the argument is nil, setWaiting marks the turn as
// running.
func (a *Agent) setWaiting(t *turn, waiting *wasmagentv1.Waiting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turn != t || a.refusesPrompts() {
		return
	}
	a.status, t.waiting = wasmagentv1.AgentState_AGENT_STATE_RUNNING, waiting
	if waiting != nil {
		waiting.Since = timestamppb.Now()
		a.status = wasmagentv1.AgentState_AGENT_STATE_WAITING
	}
}

func (s *state) refusalReason() string {
	if s.status == wasmagentv1.AgentState_AGENT_STATE_FAILED {
		return s.failure.GetMessage()
	}
	return stopReasonText(s.stopReason)
}

func stateName(current wasmagentv1.AgentState) string { return enum.Name(current) }

func stopReasonText(r wasmagentv1.StopReason) string {
	if names := map[wasmagentv1.StopReason]string{
		wasmagentv1.StopReason_STOP_REASON_MAX_TURNS: "it has used all of its turns", wasmagentv1.StopReason_STOP_REASON_MAX_EFFECTS: "a turn had too many effects",
		wasmagentv1.StopReason_STOP_REASON_POLICY_DENIED: "policy denied a call", wasmagentv1.StopReason_STOP_REASON_EXPLICIT: "it was stopped explicitly", wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED: "it has reached its goal",
	}; names[r] != "" {
		return names[r]
	}
	return strconv.Itoa(int(r))
}
