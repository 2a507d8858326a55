package classify_test

import (
	"encoding/json"
	"testing"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// TestClassify_DescriptionsInOtherLanguages uses descriptions in each known language. Dangerous tools with meaningless
// names must not be classified as Read. Tools that read must be classified as Read with certainty.
func TestClassify_DescriptionsInOtherLanguages(t *testing.T) {
	t.Parallel()
	const read, write, execute, destructive, financial = mcpv1.Category_CATEGORY_READ, mcpv1.Category_CATEGORY_WRITE,
		mcpv1.Category_CATEGORY_EXECUTE, mcpv1.Category_CATEGORY_DESTRUCTIVE, mcpv1.Category_CATEGORY_FINANCIAL
	for language, texts := range map[string]map[string]mcpv1.Category{
		"Spanish": {
			"Obtiene una nota.": read, "Crea una nota.": write, "Ejecuta un comando.": execute, "Borra todas las notas.": destructive,
			"Esta herramienta elimina una nota.": destructive, "Crea o elimina una nota.": destructive, "Emite un reembolso.": financial, "Realiza un pago.": financial,
			"Lista los pagos.": read, "Obtiene las notas eliminadas.": read, "Compra un billete.": financial,
			"Congela una cuenta.": write, "Cierra la cuenta.": write, "Plancha una lista.": execute, "Obtiene una nota y elimina las demás.": destructive,
		},
		"Portuguese": {
			"Obtém uma nota.": read, "Atualiza uma nota.": write, "Executa um comando.": execute, "Exclui uma conta.": destructive, "Apaga a nota.": destructive,
			"Paga uma fatura.": financial, "Substitui todas as notas.": write, "Cria um reembolso.": financial,
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
			"Setzt die Datenbank zurück.": destructive, "Zahlt eine Rechnung.": financial, "Zählt alle Notizen.": read, "Erstellt eine Notiz mit is_public.": write,
			"Zeigt ein Konto an und überweist den Rest.": financial, "Erstattet einen Betrag.": financial, "Bezahlt eine Rechnung.": financial, "Ruft eine Notiz ab.": read,
		},
		"Turkish": {
			"Bir notu getirir.": read, "Notları listeler.": read, "Bir not oluşturur.": write, "Bir komutu çalıştırır.": execute, "Bir notu siler.": destructive, "Bir bilet satın alır.": financial,
		},
		"Chinese": {
			"获取笔记": read, "创建笔记": write, "执行命令": execute, "删除笔记": destructive, "用于清空回收站": destructive, "发起退款": financial, "创建付款": financial, "查询退款记录": read,
			"查询或删除笔记": destructive, "查询 K 线, 支持 daily / weekly / monthly period": read, "获取日志，并删除所有文件": destructive, "获取日志，然后删除文件": destructive,
		},
		"Japanese": {
			"メモを取得します。": read, "メモを作成します。": write, "コマンドを実行します。": execute, "メモを削除します。": destructive, "データを初期化します。": destructive, "返金を作成します。": financial,
			"削除されたメモの一覧を取得します。": read, "メモを取得します。その後、メモを削除します。": destructive,
		},
		"Korean": {
			"메모를 조회합니다. 삭제는 다른 도구입니다.": read, "메모를 조회합니다.": read, "메모를 생성합니다.": write, "명령을 실행합니다.": execute, "메모를 삭제합니다.": destructive, "결제를 취소하거나 환불합니다.": financial,
		},
		"Russian": {
			"Получает заметку.": read, "Создаёт заметку.": write, "Выполняет команду.": execute, "Удаляет заметку.": destructive, "Очищает корзину.": destructive, "Оплачивает счёт.": financial,
			"Список удалённых заметок.": read, "Возвращает заметку.": read, "Выводит список.": read, "Открывает порт и возвращает адрес.": write,
			"Показывает файл, затем удаляет его.": destructive, "Добавляет домен. Требует оплаты.": financial,
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

// TestClassify_ReadOnlyQueriesInOtherLanguagesAreRead checks that a query tool whose description says in another
// language that it only reads is classified as Read.
func TestClassify_ReadOnlyQueriesInOtherLanguagesAreRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"执行只读 SQL", "読み取り専用の SQL を実行します。", "읽기 전용 SQL을 실행합니다.", "Ejecuta SQL de solo lectura.", "Выполняет SQL только для чтения."} {
		for name, isRead := range map[string]bool{"query_database": true, "change_database": false} {
			raw, err := json.Marshal(map[string]any{"name": name, "description": text, "inputSchema": map[string]any{"properties": map[string]any{"sql": map[string]any{"type": "string"}}}})
			if err != nil {
				t.Fatal(err)
			}
			tool, err := classify.Read(raw)
			if err != nil {
				t.Fatal(err)
			}
			if got := classify.Classify(tool, false); got.GetCategory() == mcpv1.Category_CATEGORY_READ != isRead {
				t.Errorf("%s, %q: %v", name, text, got)
			}
			checkClassification(t, tool, false)
		}
	}
}
