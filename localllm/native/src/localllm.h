// liblocalllm: a flat C interface over the parts of llama.cpp that exist only in C++.
//
// Rules of every function here
//   - plain C types, UTF-8 text with explicit sizes, JSON for structured data;
//   - no C++ exception and no failed assertion leaves it: the result is an lm_status, lm_last_error() says why;
//   - arguments are checked before they reach llama.cpp; output arguments are written only on LM_OK;
//   - text handed out through `char ** out` is NUL-terminated and belongs to the caller: free it with lm_string_free();
//   - our own handles (lm_sampler, lm_text, lm_chat, lm_parser, lm_drafter, lm_follower, lm_lilicorr, lm_fit,
//     lm_projector, lm_media) are
//     checked for being alive: a freed or foreign pointer is an LM_INVALID_ARGUMENT. llama_model and llama_context
//     pointers are only checked for NULL: their owner keeps them valid.
#ifndef LOCALLLM_H
#define LOCALLLM_H

#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LM_API __declspec(dllexport)
#else
#define LM_API __attribute__((visibility("default")))
#endif

// Raised with every change of a function or struct below.
#define LM_ABI_VERSION 10

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lm_sampler lm_sampler;
typedef struct lm_text lm_text;
typedef struct lm_chat lm_chat;
typedef struct lm_parser lm_parser;
typedef struct lm_drafter lm_drafter;
typedef struct lm_follower lm_follower;
typedef struct lm_lilicorr lm_lilicorr;
typedef struct lm_fit lm_fit;
typedef struct lm_projector lm_projector;
typedef struct lm_media lm_media;

enum lm_status {
    LM_OK = 0,
    LM_INVALID_ARGUMENT = 1, // the caller's mistake; the message starts with the argument or field
    LM_OUT_OF_MEMORY = 2,
    LM_LOAD_FAILED = 3,   // a model, context or adapter could not be made from its file
    LM_GRAMMAR = 4,       // a grammar or JSON schema is not valid, or a token does not fit it
    LM_TEMPLATE = 5,      // a chat template failed, or text does not have the format that it promises
    LM_NO_SLOT = 6,       // the KV cache has no room for the batch; nothing was changed
    LM_ABORTED = 7,       // the abort flag was set; whole micro-batches before it remain in the KV cache
    LM_DECODE_FAILED = 8, // llama_decode failed; the state of the context is unknown
    LM_INTERNAL = 9,      // anything else, failed assertions of llama.cpp included
    LM_UNSUPPORTED = 10,  // a sound file of a kind or architecture that cannot be run
};

// Why a sequence stopped.
enum lm_finish {
    LM_FINISH_NONE = 0,   // it goes on
    LM_FINISH_EOG = 1,    // the model ended its answer (an end-of-generation token)
    LM_FINISH_STOP = 2,   // a stop string or stop token of the caller
    LM_FINISH_LENGTH = 3, // the limit of tokens
};

// ---- core ----------------------------------------------------------------------------------------------------------

LM_API int32_t lm_abi_version(void);

// The message of the last failed call on this thread, "" if none. Valid until the thread's next call.
LM_API const char * lm_last_error(void);

LM_API void lm_string_free(char * text);

// Sets up logging and assertion handling, then llama.cpp's backends. With run-time backends (GGML_BACKEND_DL), they are
// loaded from `backend_dir`. Safe to call more than once.
LM_API enum lm_status lm_init(const char * backend_dir);

// {"abi", "llama_commit", "llama_version", "compiler", "backend_dl", "system_info"}
LM_API enum lm_status lm_build_info(char ** out);

// [{"name", "description", "type", "memory_free_bytes", "memory_total_bytes", "backend"}, ...]
LM_API enum lm_status lm_devices(char ** out);

// sizeof and offsetof of every bound struct, as compiled:
// {"struct": {"size", "align", "fields": {"name": [offset, size]}}}
LM_API const char * lm_layout_json(void);

// Messages of llama.cpp wait in a bounded queue until they are taken; nothing is printed.
LM_API int32_t lm_log_pending(void);
// Keeps messages of this ggml_log_level and above (1 debug, 2 info, 3 warn, 4 error). Default: 2.
LM_API void lm_log_set_level(int32_t level);
// [{"level", "text", "thread"}, ...], oldest first; empties the queue. "thread" is true for the calling thread.
LM_API enum lm_status lm_log_take(char ** out);

// ---- model and context ---------------------------------------------------------------------------------------------

// What a GGUF file is, from its header alone: {"architecture", "type", "kind", "draft_kind", "tensors",
// "metadata_keys"}.
// "kind" is "model", "vocabulary" (no tensors), "projector", "adapter", "control vector", "draft" (only with a target)
// or "other"; "draft_kind" how it could draft for another model, as lm_follower_create calls it, "" if it cannot.
LM_API enum lm_status lm_file_info(const char * path, char ** out);

// llama_model_load_from_file with failed assertions and messages turned into an error. Files that cannot stand alone
// (see lm_file_info) are refused unless `any_kind`. Of a DFlash draft with a LiLiCorr head in the same file the draft
// is loaded, never mapped.
LM_API enum lm_status lm_model_load(const char * path, const struct llama_model_params * params, bool any_kind,
                                    struct llama_model ** out);

LM_API enum lm_status lm_context_create(struct llama_model * model, const struct llama_context_params * params,
                                        struct llama_context ** out);

// All metadata as one JSON object of strings (arrays are left out, as llama.cpp does).
LM_API enum lm_status lm_model_metadata(const struct llama_model * model, char ** out);

// Text to token ids. `*n` is the capacity of `tokens` on entry, the number of ids on return; LM_INVALID_ARGUMENT with
// the needed number in `*n` if they do not fit.
LM_API enum lm_status lm_tokenize(const struct llama_model * model, const char * text, size_t size, bool add_special,
                                  bool parse_special, llama_token * tokens, int32_t * n);

// The text of all `n` tokens, bytes as they are (a token may be a part of a character). Linear in the output.
LM_API enum lm_status lm_detokenize(const struct llama_model * model, const llama_token * tokens, int32_t n,
                                    bool special, char ** out, size_t * size);

// The texts that lm_tokenize takes for control tokens with `parse_special`, as a JSON list.
LM_API enum lm_status lm_special_tokens(const struct llama_model * model, char ** out);

// llama_decode with checked batch and failed assertions turned into an error. A model with a table of learned positions
// (lm_pool_info) needs `pos`, within that table.
LM_API enum lm_status lm_decode(struct llama_context * ctx, const struct llama_batch * batch);

// The state of one sequence as bytes. `*size` is the capacity of `data` on entry (0 and NULL to ask), the bytes on
// return.
LM_API enum lm_status lm_state_save(struct llama_context * ctx, llama_seq_id seq_id, uint8_t * data, size_t * size);
// The reverse, into an empty sequence. Bytes of another model or context are an error; the sequence is empty then.
LM_API enum lm_status lm_state_load(struct llama_context * ctx, llama_seq_id seq_id, const uint8_t * data, size_t size);

// For llama_set_abort_callback: `data` points to an int32_t; a value other than 0 stops the computation.
LM_API bool lm_abort_if_set(void * data);

// ---- adapters -----------------------------------------------------------------------------------------------------

// Whether a file is a LoRA adapter for this model: its kind, architecture, the shape and type of every tensor, and that
// no value is NaN or infinite. Reads the whole file; safe while another thread computes with the model.
LM_API enum lm_status lm_lora_check(const struct llama_model * model, const char * path);
// Loads a LoRA adapter after a check of its header, and makes sure that a computation would use all of it. It lives
// until it or the model is freed. Safe while other threads compute with the model.
LM_API enum lm_status lm_lora_load(struct llama_model * model, const char * path, struct llama_adapter_lora ** out);
// No context may have it on it any more.
LM_API enum lm_status lm_lora_free(struct llama_model * model, struct llama_adapter_lora * adapter);

// Whether llama.cpp applies control vectors to this model: not every architecture does.
LM_API enum lm_status lm_control_check(struct llama_model * model);

// The directions of a control vector (the format of llama.cpp's cvector-generator), `n_embd` values for each layer from
// 1 on; layers that the file leaves out are zero. `*n` is the capacity of `data` on entry (0 and NULL to ask), the
// number of values on return.
LM_API enum lm_status lm_control_load(const struct llama_model * model, const char * path, float * data, size_t * n);

// A control vector's share of what steers a context.
typedef struct lm_control {
    const float * data;  // as lm_control_load gives it
    float scale;         // finite
    int32_t layer_first; // 1 to layer_last
    int32_t layer_last;  // up to the number of layers - 1
} lm_control;

// Puts exactly these LoRA adapters, and the sum of these control vectors, on a context; none of them: the model alone.
LM_API enum lm_status lm_steer(struct llama_context * ctx, struct llama_adapter_lora ** loras, const float * scales,
                               int32_t n_loras, const lm_control * controls, int32_t n_controls);

// ---- sampler -------------------------------------------------------------------------------------------------------

// A sampler for one sequence. `json` holds SamplingParams by llama.cpp's names; unknown or out-of-range fields are
// errors that start with the field's name. Tokens that the vocabulary suppresses are always suppressed.
LM_API enum lm_status lm_sampler_create(const struct llama_model * model, const char * json, lm_sampler ** out);
LM_API enum lm_status lm_sampler_clone(const lm_sampler * sampler, lm_sampler ** out);
LM_API enum lm_status lm_sampler_free(lm_sampler * sampler);
// Back to the state after creation: history, grammar and random numbers.
LM_API enum lm_status lm_sampler_reset(lm_sampler * sampler);
// Tells the sampler of tokens it did not choose. `generated` false: prompt (penalties and DRY see it, the grammar does
// not).
LM_API enum lm_status lm_sampler_accept(lm_sampler * sampler, const llama_token * tokens, int32_t n, bool generated);
// Chooses a token from the logits of output `index` of the last decode. Does not accept it.
LM_API enum lm_status lm_sampler_sample(lm_sampler * sampler, struct llama_context * ctx, int32_t index,
                                        llama_token * out);
// The `*n` most probable tokens of output `index`, best first, with natural-log probabilities in `logit` and
// probabilities in `p`. `sampled` false: the model's own distribution; true: what the last lm_sampler_sample chose
// from.
LM_API enum lm_status lm_sampler_top(lm_sampler * sampler, struct llama_context * ctx, int32_t index, bool sampled,
                                     llama_token_data * out, int32_t * n);
LM_API enum lm_status lm_sampler_seed(const lm_sampler * sampler, uint32_t * out);

// ---- text ----------------------------------------------------------------------------------------------------------

// Turns tokens of one answer into text. It never lets out half a character or the beginning of a stop string.
// `json`: {"stop": [strings], "stop_tokens": [ids], "special": bool, "visible_tokens": [ids or strings]}. Special
// tokens have no text unless `special`, or they are listed as visible.
LM_API enum lm_status lm_text_create(const struct llama_model * model, const char * json, lm_text ** out);
LM_API enum lm_status lm_text_free(lm_text * text);
// `*finish` becomes LM_FINISH_STOP when a stop string or stop token was met: text from the stop string on is dropped.
// `bytes` belongs to `text` and lives until its next call.
LM_API enum lm_status lm_text_push(lm_text * text, llama_token token, const char ** bytes, size_t * size,
                                   enum lm_finish * finish);
// The answer is over: what was held back, incomplete characters as U+FFFD.
LM_API enum lm_status lm_text_flush(lm_text * text, const char ** bytes, size_t * size);

// ---- step ----------------------------------------------------------------------------------------------------------

// One sequence's share of a decoded batch.
typedef struct lm_row {
    lm_sampler * sampler;      // in
    lm_text * text;            // in: NULL if no text is wanted
    const llama_token * draft; // in: the `n_draft` drafted tokens that are in the batch behind the last known token
    llama_token * tokens;      // out: room for n_draft + 1 tokens
    float * logprobs;          // out: room for n_draft + 1 values, the natural-log probability of each token; or NULL
    llama_token_data * top;    // out: room for (n_draft + 1) * n_top candidates, best first; or NULL
    int32_t index;             // in: batch index of the last known token; drafted tokens follow it without a gap
    int32_t n_draft;           // in
    int32_t n_top;             // in: candidates wanted for each token
    int32_t max_tokens;        // in: at most so many tokens, >= 1; out: what is left of them
    bool sampled_probs;        // in: probabilities after the sampler chain, not the model's own
    bool ignore_eog;           // in: go on after an end-of-generation token

    int32_t n_tokens;   // out: tokens that the target chose; all but the last equal the draft
    int32_t finish;     // out: enum lm_finish
    int32_t status;     // out: enum lm_status of this row; a failed row does not stop the others
    const char * bytes; // out: text that may be shown now; belongs to `text`
    size_t size;        // out: bytes of it
    const char * error; // out: why `status` is not LM_OK; lives until the thread's next lm_step
} lm_row;

// Samples, accepts, checks against drafts and stop rules, and renders text for all rows of a decoded batch.
LM_API enum lm_status lm_step(struct llama_context * ctx, lm_row ** rows, int32_t n_rows);

// lm_decode and, if that succeeds, lm_step: a whole step of the engine in one call.
LM_API enum lm_status lm_run(struct llama_context * ctx, const struct llama_batch * batch, lm_row ** rows,
                             int32_t n_rows);

// ---- pool ----------------------------------------------------------------------------------------------------------

// How the vectors of a text's tokens become what is asked for.
enum lm_pooling {
    LM_POOL_NONE = 0, // one vector per token
    LM_POOL_MEAN = 1, // their mean
    LM_POOL_CLS = 2,  // the first token's
    LM_POOL_LAST = 3, // the last token's
    LM_POOL_RANK = 4, // the outputs of the model's classification head
};

// One text's share of a batch. A text may go through several batches, with the same `out` each time.
typedef struct lm_piece {
    float * out;   // in: one row, LM_POOL_NONE: one row per token of the whole text; n_embd_out floats a row, n_cls_out
                   // for LM_POOL_RANK. out: right when the text's last token is computed
    size_t n_out;  // in: floats that fit into `out`
    int32_t first; // in: batch index of the piece's first token; the others follow without a gap
    int32_t n_tokens; // in: tokens of the piece
    int32_t n_done;   // in: tokens of the text in earlier batches
    int32_t pooling;  // in: enum lm_pooling
    int32_t status;   // out: LM_OK, or LM_DECODE_FAILED if the model gave something that is no number
} lm_piece;

// llama_encode for models that have an encoder or no memory, llama_decode for the others, then the pieces' rows. The
// context must have been made with `embeddings`, and with LLAMA_POOLING_TYPE_RANK for LM_POOL_RANK, else with
// LLAMA_POOLING_TYPE_NONE: llama.cpp's own pooling sees one micro-batch, this one all of a text.
LM_API enum lm_status lm_embed(struct llama_context * ctx, const struct llama_batch * batch, lm_piece * pieces,
                               int32_t n_pieces);

// Keeps the first `n_to` of the `n_from` floats of each row, rows closing up, and, if asked for, makes each row's
// Euclidean length 1; a row of zeros stays.
LM_API enum lm_status lm_rows_finish(float * rows, size_t n_rows, int32_t n_from, int32_t n_to, bool normalize);

// {"outputs", "width", "labels", "softmax", "positions"}. Of the classification head: "width" is how many values its
// tensors give (0: there is no head), "outputs" how many llama.cpp reads, "softmax" whether it has taken that of them.
// "positions": how many a table of positions has (0: there is none, as with RoPE).
LM_API enum lm_status lm_pool_info(const struct llama_model * model, char ** out);

// ---- drafts --------------------------------------------------------------------------------------------------------

// Guesses how sequences go on, from what stands in them already. `json`: {"chain": ["ngram-simple", "ngram-map-k",
// "ngram-map-k4v", "ngram-mod", "ngram-cache"], "n_max", "n_min", "n_match", "min_hits"}. The kinds of the chain are
// asked in that order, until one of them has a guess. "ngram-mod" learns from all sequences, the others from their own.
LM_API enum lm_status lm_drafter_create(const struct llama_model * model, const char * json, int32_t n_slots,
                                        lm_drafter ** out);
LM_API enum lm_status lm_drafter_free(lm_drafter * drafter);
// A sequence begins, or goes on elsewhere: all its tokens so far, at least one.
LM_API enum lm_status lm_drafter_begin(lm_drafter * drafter, int32_t slot, const llama_token * tokens, int32_t n);

// What one sequence has to tell its drafter, and what it gets.
typedef struct lm_proposal {
    const llama_token * news; // in: tokens of the sequence since the last call
    llama_token * draft;      // out: room for n_max tokens
    int32_t slot;             // in
    int32_t n_news;           // in
    int32_t n_accepted;       // in: how many tokens of the last draft were right; -1 if it was not checked
    int32_t n_max;            // in: most tokens wanted; 0: none, only learn
    int32_t n_draft;          // out
} lm_proposal;

LM_API enum lm_status lm_drafter_propose(lm_drafter * drafter, lm_proposal * proposals, int32_t n);

// Guesses by a model of its own, or by heads of the target. `draft` is a context of that model, made with the target as
// `ctx_other`, for the same sequences and (but for draft-simple) one more; both outlive the follower. What becomes of a
// sequence of the target (cut, copied, shifted, restored) has to become of it in `draft` as well. `json`: {"kind":
// "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark" or "draft-lilicorr", "n_max", "n_min",
// "p_min"}. "draft-lilicorr" has two more: "head", the file with the head, which may be the draft's own, and
// "candidates": where the most likely tokens are found, in the "graph" of the draft, which needs an
// n_outputs_max_per_seq of a block, on the "host", or, "auto", in the graph if it can be done there and is computed on
// another device than the CPU.
LM_API enum lm_status lm_follower_create(struct llama_context * target, struct llama_context * draft, const char * json,
                                         int32_t n_slots, lm_follower ** out);
LM_API enum lm_status lm_follower_free(lm_follower * follower);
// Most tokens that it drafts: a kind may have learned fewer than were asked for.
LM_API enum lm_status lm_follower_n_max(const lm_follower * follower, int32_t * out);
// Takes in a batch that the target has just decoded; tokens of a sequence stand side by side.
LM_API enum lm_status lm_follower_follow(lm_follower * follower, const struct llama_batch * batch);
// So many tokens of the draft that was in that batch were right. Before the next batch.
LM_API enum lm_status lm_follower_accept(lm_follower * follower, int32_t slot, int32_t n_accepted);
// What the kind has to know of a slot's last token besides the state in `draft`, for another slot that goes on from
// there: that token's position, and bytes. Without `data`, only their size; 0, and position -1: nothing, or it is not
// known.
LM_API enum lm_status lm_follower_carry(const lm_follower * follower, int32_t slot, llama_pos * position,
                                        uint8_t * data, size_t * size);
// The slot goes on from there; size 0: it is not known, or the slot is empty. Takes effect with its next batch or
// draft.
LM_API enum lm_status lm_follower_set_carry(lm_follower * follower, int32_t slot, llama_pos position,
                                            const uint8_t * data, size_t size);
// Where something is carried, the state in `draft` has to end so many positions before the target's.
LM_API enum lm_status lm_follower_lag(const lm_follower * follower, int32_t * out);

typedef struct lm_draft_request {
    llama_token * draft; // out: room for n_max tokens
    int32_t slot;        // in
    int32_t n_past;      // in: tokens of the sequence that the target has computed
    llama_token last;    // in: the token behind them
    int32_t n_max;       // in
    int32_t n_draft;     // out
} lm_draft_request;

LM_API enum lm_status lm_follower_propose(lm_follower * follower, lm_draft_request * requests, int32_t n);

// Where the time went since the follower was made.
typedef struct lm_follower_times {
    uint64_t follow_us; // in lm_follower_follow
    uint64_t draft_us; // the draft's own passes, in lm_follower_propose; of llama.cpp's kinds with the choice of tokens
    uint64_t candidates_us; // "draft-lilicorr": finding or fetching the candidates of each slot
    uint64_t head_us;       // "draft-lilicorr": scoring them
    uint64_t n_followed;    // tokens
    uint64_t n_proposals;   // drafts that were asked for
} lm_follower_times;

LM_API enum lm_status lm_follower_get_times(const lm_follower * follower, lm_follower_times * out);

// The head of a "draft-lilicorr" alone, on the CPU: what a file's head makes of given values. `n_blocks`: most blocks
// of one pass.
LM_API enum lm_status lm_lilicorr_create(const char * path, int32_t n_threads, int32_t n_blocks, lm_lilicorr ** out);
LM_API enum lm_status lm_lilicorr_free(lm_lilicorr * head);
// {"n_embd", "n_hidden", "n_slots", "n_candidates", "n_layers", "n_heads", "n_mlp", "n_factors"}
LM_API enum lm_status lm_lilicorr_info(const lm_lilicorr * head, char ** out);

// The `k` most likely tokens of each row of logits, best first, and their natural-log probabilities.
LM_API enum lm_status lm_lilicorr_candidates(const float * logits, int32_t n_rows, int32_t n_vocab, int32_t k,
                                             llama_token * ids, float * logprobs);

// One block, arrays row-major.
typedef struct lm_lilicorr_block {
    const float * logprobs;   // in: [n_slots, n_candidates], best first
    const float * embeddings; // in: [n_slots, n_candidates, n_embd], the target's token embeddings of the candidates
    const float * hidden;     // in: [n_slots, n_embd], the draft's rows after its last norm
    const float * anchor;     // in: [n_embd], the draft's context row of the last token that the target has computed
    float * start;            // out: [n_candidates], scores of the first slot
    float * pair;   // out: [n_slots - 1, n_candidates, n_candidates], scores by candidate before and candidate
    int32_t * path; // out: [n_slots], the candidates chosen
    float p_min;    // in: the path ends before a candidate less probable than this among those of its slot
    int32_t n_path; // out
} lm_lilicorr_block;

LM_API enum lm_status lm_lilicorr_score(lm_lilicorr * head, lm_lilicorr_block * blocks, int32_t n);

// ---- chat ----------------------------------------------------------------------------------------------------------

// The templates of a model, or of `source` (Jinja text) if that is given. `model` may be NULL if `source` is not.
LM_API enum lm_status lm_chat_create(const struct llama_model * model, const char * source, lm_chat ** out);
LM_API enum lm_status lm_chat_free(lm_chat * chat);
// {"source", "source_tool_use", "explicit", "caps": {...}}
LM_API enum lm_status lm_chat_info(const lm_chat * chat, char ** out);
// `json`: {"messages": [...], "tools": [...], "callable_tools", "strict_tools", "tool_choice", "parallel_tool_calls",
// "json_schema", "grammar", "add_generation_prompt", "continue_final_message", "reasoning_format", "enable_thinking",
// "template_kwargs", "now"}. "strict_tools" are the names of those that also free calls keep to the schemas of. With
// tools and a schema the answer is a call or what the schema says; a template that knows no tools gets them described,
// and calls in a format of ours.
// Result: {"prompt", "format", "grammar", "grammar_kind", "grammar_lazy", "grammar_triggers", "preserved_tokens",
// "stops", "generation_prompt", "supports_thinking", "thinking_start", "thinking_ends", "delimiters", "parser"} where
// "parser" is what lm_parser_create takes.
LM_API enum lm_status lm_chat_apply(const lm_chat * chat, const char * json, char ** out);

LM_API enum lm_status lm_parser_create(const char * json, lm_parser ** out);
LM_API enum lm_status lm_parser_free(lm_parser * parser);
// An answer so far, or whole, to {"role", "content", "reasoning_content", "tool_calls"}.
LM_API enum lm_status lm_parser_parse(const lm_parser * parser, const char * text, size_t size, bool is_partial,
                                      char ** out);

// A JSON schema as a GBNF grammar.
LM_API enum lm_status lm_schema_to_grammar(const char * json, char ** out);

// Parses a grammar, and says how many bytes of a text it takes, and whether the text may end there. LM_GRAMMAR: it is
// no grammar; the message begins with line and column.
LM_API enum lm_status lm_grammar_check(const char * grammar, const char * text, size_t size, bool * whole,
                                       size_t * taken);

// ---- memory --------------------------------------------------------------------------------------------------------

// What a context and its model take, by kind of buffer: {"buffers": [{"buffer", "device", "is_host", "model_bytes",
// "context_bytes", "compute_bytes"}], "output_bytes", "model_bytes", "context_bytes", "compute_bytes", "n_ctx"}.
// "context_bytes" is the KV cache and the states of recurrent layers, "output_bytes" the rows of logits and embeddings
// that are handed out, on the host. No other thread may compute with the context meanwhile.
LM_API enum lm_status lm_memory_of(const struct llama_context * ctx, char ** out);

// The same for a model and a context that are not made: llama.cpp lays everything out and allocates nothing. Of the
// file only the header is read, what follows may be a hole. In addition {"n_ctx_train", "n_layer", "devices": [{"name",
// "is_gpu", "free_bytes", "total_bytes"}]}, the devices that the model would use.
LM_API enum lm_status lm_memory_measure(const char * path, const struct llama_model_params * model,
                                        const struct llama_context_params * context, char ** out);

// llama.cpp's own choice of what goes to which device (common_fit_params). Of `model` and `context` it changes what has
// its default value: n_gpu_layers, tensor_split, tensor_buft_overrides, and an n_ctx of 0, which becomes the length
// that the model was trained for, or as much of it as leaves `margin_bytes` free on every device, at least `n_ctx_min`.
// Files are measured as by lm_memory_measure. Other threads wait with loading meanwhile.
LM_API enum lm_status lm_fit_create(const char * path, const struct llama_model_params * model,
                                    const struct llama_context_params * context, uint64_t margin_bytes,
                                    uint32_t n_ctx_min, lm_fit ** out);
LM_API enum lm_status lm_fit_free(lm_fit * fit);
// {"fits", "n_ctx", "n_gpu_layers", "tensor_split": [...], "overrides": [[pattern, buffer], ...]}. "fits" false:
// llama.cpp found nothing that leaves the margin, and has changed nothing.
LM_API enum lm_status lm_fit_info(const lm_fit * fit, char ** out);
// Writes the choice into parameters for loading; they point into `fit`, which has to outlive the loading.
LM_API enum lm_status lm_fit_apply(const lm_fit * fit, struct llama_model_params * model,
                                   struct llama_context_params * context);

// ---- speed ---------------------------------------------------------------------------------------------------------

// The tensor types that can be timed, by their names in capitals, and where llama.cpp keeps matrices of them when the
// CPU computes: [{"type", "repacked", "buffer"}, ...]. "repacked": in a layout of the CPU's own.
LM_API enum lm_status lm_speed_types(char ** out);

// Times products with matrices of one type on the CPU: {"type", "repacked", "buffer", "flops_per_second",
// "bytes_per_second"}. "flops_per_second": of a batch of 512 columns, two for each weight and column.
// "bytes_per_second": of weights that are not in any cache, read for one column. Takes up to three seconds and 200 MB.
LM_API enum lm_status lm_speed_matrix(const char * type, int32_t n_threads, char ** out);

// Times the rest of a layer on the CPU, in seconds:
// "layer_seconds": for one token, all but the matrices and the look back: small operations, and threads that wait;
// "attention_seconds": of one thread, for one token, for each value of its queries and each cell of the cache;
// "batch_attention_seconds": the same for each of a batch of 512 tokens;
// "pass_seconds": for each value of a batch of 512 tokens that is normalized, scaled and added.
LM_API enum lm_status lm_speed_layer(int32_t n_threads, char ** out);

// ---- quantize ------------------------------------------------------------------------------------------------------

// The mixtures of tensor types that a model can be written in without an importance matrix: ["Q4_0", "Q4_K_M", ...].
LM_API enum lm_status lm_quantize_types(char ** out);

// Which type each tensor would have in each mixture: {"Q4_0": {"token_embd.weight": "Q6_K", ...}, ...}. `path` is the
// model's only or first file. Reads no weights.
LM_API enum lm_status lm_quantize_plan(const char * path, char ** out);

// Writes a model in another mixture to `output`, which is replaced; after a failure a part of it can be left there.
// `metadata`: a JSON object of strings that are put into the file, of fewer than 128 bytes each. `abort`, if not NULL,
// points to a number that stops it before the next tensor when it becomes other than 0: LM_ABORTED.
LM_API enum lm_status lm_quantize(const char * path, const char * output, const char * type, int32_t n_threads,
                                  const char * metadata, const int32_t * abort);

// ---- bench ---------------------------------------------------------------------------------------------------------

// The bare loop that the engine is compared with: prefill `tokens`, then `n_generate` greedy steps of llama_decode and
// argmax. Writes the chosen tokens and the seconds of both phases.
LM_API enum lm_status lm_bench_loop(struct llama_context * ctx, const llama_token * tokens, int32_t n,
                                    int32_t n_generate, llama_token * generated, double * prefill_seconds,
                                    double * decode_seconds);

// ---- pictures and sound

enum lm_part_kind {
    LM_PART_TEXT = 0,
    LM_PART_IMAGE = 1,
    LM_PART_AUDIO = 2,
};

// A part of a prompt. Without `pixels` or `samples` it can be split, but not encoded.
typedef struct lm_part {
    int32_t kind;      // enum lm_part_kind
    const char * text; // of "text", with `size` bytes
    size_t size;
    bool parse_special;     // whether control tokens written as text are such
    const uint8_t * pixels; // of a picture: width * height * 3 bytes, red, green, blue; may be NULL
    uint32_t width;
    uint32_t height;
    bool frame;            // of a video: some models take two that follow one another as one
    const float * samples; // of sound: one channel, at the rate that lm_projector_info names; may be NULL
    size_t n_samples;
} lm_part;

// A piece of a prompt that was split: text tokens, or rows that the encoder makes. Its pointers live as long as the
// lm_media.
typedef struct lm_media_piece {
    int32_t part;                // which part it came from; -1: text
    int32_t n_tokens;            // cells that it takes
    int32_t n_positions;         // positions by which what follows moves on; with M-RoPE fewer than cells
    bool causal;                 // false: its rows see one another, and have to be in one micro-batch
    const llama_token * tokens;  // of text
    const llama_pos * positions; // of rows that begin at 0: all of the first section, then of the next; then the same
                                 // for rows that begin at 1, as not all sections count from there
    const uint8_t * description; // `size` bytes: how the encoder sees it, everything but its content
    size_t size;
} lm_media_piece;

typedef struct lm_media_ref {
    const lm_media * media;
    int32_t index;
} lm_media_ref;

// Loads a projector for a model. JSON: use_gpu, device (a name), n_threads, flash_attn (-1 to 1), image_min_tokens,
// image_max_tokens, batch_max_tokens (most rows of pictures that are encoded together).
LM_API enum lm_status lm_projector_open(const struct llama_model * model, const char * path, const char * json,
                                        lm_projector ** out);
LM_API enum lm_status lm_projector_free(lm_projector * projector);

// JSON: image, audio, samples_per_second, n_sections (positions of a row), n_embd (floats of a row).
LM_API enum lm_status lm_projector_info(const lm_projector * projector, char ** out);

// Splits a prompt into pieces; what the model wants around a picture is part of the text. From any thread.
LM_API enum lm_status lm_media_split(const lm_projector * projector, const lm_part * parts, int32_t n, bool add_special,
                                     lm_media ** out);
LM_API enum lm_status lm_media_free(lm_media * media);
LM_API enum lm_status lm_media_size(const lm_media * media, int32_t * out);
LM_API enum lm_status lm_media_get(const lm_media * media, int32_t index, lm_media_piece * out);

// The rows of pieces, one after the other, `n_tokens * n_embd` floats each. Pictures of one size that follow one
// another are encoded in one pass, up to batch_max_tokens; `n_passes` says in how many.
LM_API enum lm_status lm_media_encode(lm_projector * projector, const lm_media_ref * pieces, int32_t n, float * rows,
                                      size_t n_floats, int32_t * n_passes);

#ifdef __cplusplus
}
#endif

#endif // LOCALLLM_H
