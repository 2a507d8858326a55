package classify_test

import (
	"encoding/json"
	"testing"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// TestClassify_DescriptionsInOtherLanguages checks, for each known language, that dangerous tools with meaningless
// names are not classified as Read, and that tools that read are classified as Read with certainty.
func TestClassify_DescriptionsInOtherLanguages(t *testing.T) {
	t.Parallel()
	const read, write, execute, destructive, financial = mcpv1.Category_CATEGORY_READ, mcpv1.Category_CATEGORY_WRITE,
		mcpv1.Category_CATEGORY_EXECUTE, mcpv1.Category_CATEGORY_DESTRUCTIVE, mcpv1.Category_CATEGORY_FINANCIAL
	for language, texts := range map[string]map[string]mcpv1.Category{
		"Spanish": {
			"Obtiene una nota.": read, "Crea una nota.": write, "Ejecuta un comando.": execute, "Borra todas las notas.": destructive,
			"Esta herramienta elimina una nota.": destructive, "Crea o elimina una nota.": destructive, "Emite un reembolso.": financial, "Realiza un pago.": financial,
			"Lista los pagos.": read, "Obtiene las notas eliminadas.": read, "Compra un billete.": financial,
		},
		"Portuguese": {
			"Obtém uma nota.": read, "Atualiza uma nota.": write, "Executa um comando.": execute, "Exclui uma conta.": destructive, "Apaga a nota.": destructive,
			"Paga uma fatura.": financial, "Cria um reembolso.": financial,
		},
		"Italian": {
			"Legge una nota.": read, "Modifica una nota.": write, "Esegue un comando.": execute, "Cancella una nota.": destructive, "Svuota il cestino.": destructive,
			"Rimborsa un ordine.": financial,
		},
		"French": {
			"Affiche une note.": read, "Ajoute une note.": write, "Exécute une commande.": execute, "Supprime une note.": destructive, "Efface les données.": destructive,
			"Rembourse un client.": financial, "Crée un paiement.": financial,
		},
		"German": {
			"Liest eine Notiz.": read, "Erstellt eine Notiz.": write, "Führt einen Befehl aus.": execute, "Löscht eine Notiz.": destructive, "Alle Notizen löschen": destructive,
			"Setzt die Datenbank zurück.": destructive, "Erstattet einen Betrag.": financial, "Bezahlt eine Rechnung.": financial, "Ruft eine Notiz ab.": read,
		},
		"Chinese": {
			"获取笔记": read, "创建笔记": write, "执行命令": execute, "删除笔记": destructive, "用于清空回收站": destructive, "发起退款": financial, "创建付款": financial, "查询退款记录": read,
			"查询或删除笔记": destructive,
		},
		"Japanese": {
			"メモを取得します。": read, "メモを作成します。": write, "コマンドを実行します。": execute, "メモを削除します。": destructive, "データを初期化します。": destructive, "返金を作成します。": financial,
			"削除されたメモの一覧を取得します。": read,
		},
		"Korean": {
			"메모를 조회합니다.": read, "메모를 생성합니다.": write, "명령을 실행합니다.": execute, "메모를 삭제합니다.": destructive, "결제를 취소하거나 환불합니다.": financial,
		},
		"Russian": {
			"Получает заметку.": read, "Создаёт заметку.": write, "Выполняет команду.": execute, "Удаляет заметку.": destructive, "Очищает корзину.": destructive, "Оплачивает счёт.": financial,
			"Список удалённых заметок.": read,
		},
	} {
		for text, want := range texts {
			raw, err := json.Marshal(map[string]any{"name": "werkzeug7", "description": text})
			if err != nil {
				t.Fatal(err)
			}
			tool, err := classify.Read(raw)
			if err != nil {
				t.Fatal(err)
			}
			if got := classify.Classify(tool, false); got.GetCategory() != want || want == read && got.GetConfidence() < classify.Unsure {
				t.Errorf("%s, %q: %v (%.2f), want %v", language, text, got.GetCategory(), got.GetConfidence(), want)
			}
			checkClassification(t, tool, false)
		}
	}
}

// TestClassify_IsUncertainWithoutAKnownVerb checks that tools with descriptions in unknown languages, or with unknown
// words, are classified as Execute and uncertain.
func TestClassify_IsUncertainWithoutAKnownVerb(t *testing.T) {
	t.Parallel()
	for _, definition := range []string{
		`{"name":"x7","description":"ลบบันทึกทั้งหมด"}`, `{"name":"x7","description":"يحذف جميع الملاحظات"}`, `{"name":"x7","description":"Poistaa muistiinpanot."}`,
		`{"name":"weather","description":"Current weather of a city."}`, `{"name":"note_x","description":"Frobnicate the note."}`,
		`{"name":"get_note","description":"ลบบันทึกทั้งหมดอย่างถาวร"}`, `{"name":"list_notes","description":"يحذف جميع الملاحظات نهائيا"}`,
		`{"name":"get_note","description":"Poistaa kaikki muistiinpanot lopullisesti."}`,
	} {
		tool, err := classify.Read([]byte(definition))
		if err != nil {
			t.Fatal(err)
		}
		if got := classify.Classify(tool, false); got.GetCategory() != mcpv1.Category_CATEGORY_EXECUTE || got.GetConfidence() >= classify.Unsure {
			t.Errorf("%s is %v (%.2f)", definition, got.GetCategory(), got.GetConfidence())
		}
	}
}
