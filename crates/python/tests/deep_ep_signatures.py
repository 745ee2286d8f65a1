"""Data: parameters of methods as versions of DeepEP declare them; and calls of engines: class, method, number of positional arguments, keywords."""

DECLARED = {
  "DeepEP 1.2.1 (9af0e0d0e74f deep_ep/buffer.py)": {
    "Buffer": {
      "__init__": "group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, explicitly_destroy=False, comm=None",
      "destroy": "",
      "is_sm90_compiled": "",
      "set_num_sms": "new_num_sms",
      "capture": "",
      "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts",
      "get_comm_stream": "",
      "get_local_buffer_tensor": "dtype, size=None, offset=0, use_rdma_buffer=False",
      "get_dispatch_config": "num_ranks",
      "get_combine_config": "num_ranks",
      "get_dispatch_layout": "topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "dispatch": "x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "combine": "x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank, hidden, num_experts",
      "low_latency_dispatch": "x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=False",
      "low_latency_combine": "x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False, return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None",
      "get_next_low_latency_combine_buffer": "handle"
    }
  },
  "DeepEP 2.1.0 (dd758caf4518 deep_ep/buffers/legacy.py)": {
    "Buffer": {
      "__init__": "group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, explicitly_destroy=False, enable_shrink=False, comm=None",
      "destroy": "",
      "is_sm90_compiled": "",
      "set_num_sms": "new_num_sms",
      "capture": "",
      "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts",
      "get_comm_stream": "",
      "get_local_buffer_tensor": "dtype, size=None, offset=0, use_rdma_buffer=False",
      "get_dispatch_config": "num_ranks",
      "get_combine_config": "num_ranks",
      "get_dispatch_layout": "topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "dispatch": "x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "combine": "x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank, hidden, num_experts",
      "low_latency_dispatch": "x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=False",
      "low_latency_combine": "x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False, return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None",
      "low_latency_update_mask_buffer": "rank_to_mask, mask=False",
      "low_latency_query_mask_buffer": "mask_status",
      "low_latency_clean_mask_buffer": "",
      "get_next_low_latency_combine_buffer": "handle"
    }
  },
  "DeepEP hybrid-ep (94a9f8f6b146 deep_ep/buffer.py)": {
    "Buffer": {
      "__init__": "group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24, allow_nvlink_for_normal_mode=True, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, use_fabric=False, explicitly_destroy=False, comm=None",
      "destroy": "",
      "is_sm90_compiled": "",
      "set_num_sms": "new_num_sms",
      "capture": "",
      "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts",
      "get_comm_stream": "",
      "get_local_buffer_tensor": "dtype, size=None, offset=0, use_rdma_buffer=False",
      "get_dispatch_config": "num_ranks",
      "get_combine_config": "num_ranks",
      "get_dispatch_layout": "topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "dispatch": "x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "combine": "x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False",
      "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank, hidden, num_experts",
      "low_latency_dispatch": "x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, topk_weights=None, cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, x_global_scale=None, use_fp8=True, round_scale=False, use_ue8m0=False, use_nvfp4=False, use_ue8m0_for_sf=False, async_finish=False, return_recv_hook=False",
      "low_latency_combine": "x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False, return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None, overlap=False, src_signals=None, src_signal_expect_value=0",
      "get_next_low_latency_combine_buffer": "handle"
    }
  },
  "DeepEP 2.0.0 (b306af0 deep_ep/buffers/elastic.py)": {
    "ElasticBuffer": {
      "__init__": "group, num_bytes=None, num_max_tokens_per_rank=0, hidden=0, num_topk=0, use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True, prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0, num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False",
      "destroy": "",
      "get_buffer_size_hint": "group, num_max_tokens_per_rank, hidden, num_topk=0, use_fp8_dispatch=False, allow_hybrid_mode=True, allow_multiple_reduction=True",
      "barrier": "use_comm_stream=True, with_cpu_sync=False",
      "capture": "",
      "get_comm_stream": "",
      "get_physical_domain_size": "",
      "get_logical_domain_size": "",
      "get_theoretical_num_sms": "num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0, sm_read_gbs=200, sm_write_gbs=50",
      "get_theoretical_num_qps": "num_sms",
      "dispatch": "x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None, num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None, previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False, handle=None, do_handle_copy=True, do_cpu_sync=None, do_expand=False, use_tma_aligned_col_major_sf=False",
      "combine": "x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None, previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False"
    }
  },
  "DeepEP 2.1.0 (dd758caf4518 deep_ep/buffers/elastic.py)": {
    "ElasticBuffer": {
      "__init__": "group, num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0, hidden=0, num_topk=0, use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True, prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0, num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False",
      "destroy": "",
      "get_buffer_size_hint": "group, num_max_tokens_per_rank, hidden, num_topk=0, use_fp8_dispatch=False, allow_hybrid_mode=True, allow_multiple_reduction=True",
      "barrier": "use_comm_stream=True, with_cpu_sync=False, sequential=True",
      "capture": "",
      "get_comm_stream": "",
      "get_physical_domain_size": "",
      "get_logical_domain_size": "",
      "get_theoretical_num_sms": "num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0, sm_read_gbs=200, sm_write_gbs=50",
      "get_theoretical_num_qps": "num_sms",
      "dispatch": "x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None, num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None, previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False, handle=None, do_handle_copy=True, do_cpu_sync=None, do_expand=False, do_zero_padding=False, use_tma_aligned_col_major_sf=False",
      "combine": "x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None, previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False"
    }
  }
}

CALLED = {
  "vLLM (055e47c28003 fused_moe/prepare_finalize, 001430048e81 device_communicators/all2all.py)": [
    ["Buffer", "__init__", 0, "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank explicitly_destroy"],
    ["Buffer", "__init__", 0, "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank allow_nvlink_for_low_latency_mode allow_mnnvl explicitly_destroy enable_shrink"],
    ["Buffer", "get_low_latency_rdma_size_hint", 0, "num_max_dispatch_tokens_per_rank hidden num_ranks num_experts"],
    ["Buffer", "set_num_sms", 1, ""],
    ["Buffer", "capture", 0, ""],
    ["Buffer", "get_dispatch_config", 1, ""],
    ["Buffer", "get_combine_config", 1, ""],
    ["Buffer", "get_dispatch_layout", 0, "topk_idx num_experts previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "dispatch", 0, "x handle num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert topk_idx topk_weights expert_alignment config previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "combine", 0, "x handle topk_weights config previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "low_latency_dispatch", 4, "use_fp8 round_scale use_ue8m0 async_finish return_recv_hook"],
    ["Buffer", "low_latency_combine", 4, "async_finish zero_copy return_recv_hook out"],
    ["Buffer", "low_latency_query_mask_buffer", 1, ""],
    ["Buffer", "low_latency_clean_mask_buffer", 0, ""],
    ["Buffer", "get_local_buffer_tensor", 0, "dtype use_rdma_buffer"],
    ["Buffer", "destroy", 0, ""]
  ],
  "SGLang (003a81bf2870 layers/moe/token_dispatcher/deepep.py)": [
    ["Buffer", "__init__", 3, "low_latency_mode num_qps_per_rank allow_mnnvl"],
    ["Buffer", "get_low_latency_rdma_size_hint", 4, ""],
    ["Buffer", "get_dispatch_config", 1, ""],
    ["Buffer", "get_combine_config", 1, ""],
    ["Buffer", "capture", 0, ""],
    ["Buffer", "clean_low_latency_buffer", 3, ""],
    ["Buffer", "get_dispatch_layout", 2, "previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "dispatch", 1, "topk_idx topk_weights num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert previous_event async_finish allocate_on_comm_stream expert_alignment config"],
    ["Buffer", "combine", 2, "async_finish previous_event allocate_on_comm_stream config"],
    ["Buffer", "low_latency_dispatch", 4, "use_fp8 async_finish return_recv_hook round_scale use_ue8m0"],
    ["Buffer", "low_latency_combine", 0, "x topk_idx topk_weights handle async_finish return_recv_hook"]
  ],
  "Megatron-LM (02ad939ba9d1 megatron/core/transformer/moe/fused_a2a.py)": [
    ["Buffer", "__init__", 3, ""],
    ["Buffer", "get_dispatch_config", 1, ""],
    ["Buffer", "get_combine_config", 1, ""],
    ["Buffer", "set_num_sms", 1, ""],
    ["Buffer", "get_dispatch_layout", 2, "previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "dispatch", 1, "topk_idx topk_weights num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "dispatch", 1, "handle previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "combine", 2, "topk_weights previous_event async_finish allocate_on_comm_stream"],
    ["Buffer", "combine", 1, "handle previous_event async_finish allocate_on_comm_stream"]
  ],
  "vLLM (02bd2a494f5c fused_moe/prepare_finalize/deepep_v2.py, 001430048e81 device_communicators/all2all.py)": [
    ["ElasticBuffer", "__init__", 0, "group num_max_tokens_per_rank hidden num_topk use_fp8_dispatch allow_hybrid_mode prefer_overlap_with_compute allow_multiple_reduction num_cpu_timeout_secs num_gpu_timeout_secs explicitly_destroy"],
    ["ElasticBuffer", "get_theoretical_num_sms", 0, "num_experts num_topk"],
    ["ElasticBuffer", "dispatch", 0, "x topk_idx topk_weights num_experts num_max_tokens_per_rank do_expand do_cpu_sync async_with_compute_stream"],
    ["ElasticBuffer", "combine", 0, "x handle topk_weights async_with_compute_stream allocate_on_comm_stream"],
    ["ElasticBuffer", "destroy", 0, ""]
  ],
  "SGLang 0.5.23 (layers/moe/token_dispatcher/deepep_v2.py)": [
    ["ElasticBuffer", "__init__", 1, "num_max_tokens_per_rank hidden num_topk use_fp8_dispatch allow_hybrid_mode sl_idx prefer_overlap_with_compute"],
    ["ElasticBuffer", "dispatch", 1, "topk_idx topk_weights num_experts num_max_tokens_per_rank expert_alignment num_sms use_tma_aligned_col_major_sf do_cpu_sync do_expand"],
    ["ElasticBuffer", "combine", 1, "handle topk_weights"]
  ],
  "SGLang (0134da0b075f layers/moe/token_dispatcher/deepep_v2.py)": [
    ["ElasticBuffer", "__init__", 1, "num_max_tokens_per_rank hidden num_topk use_fp8_dispatch allow_hybrid_mode sl_idx prefer_overlap_with_compute"],
    ["ElasticBuffer", "get_theoretical_num_sms", 2, ""],
    ["ElasticBuffer", "get_theoretical_num_qps", 1, ""],
    ["ElasticBuffer", "dispatch", 1, "topk_idx topk_weights num_experts num_max_tokens_per_rank expert_alignment num_sms num_qps use_tma_aligned_col_major_sf do_cpu_sync do_expand"],
    ["ElasticBuffer", "combine", 1, "handle topk_weights num_sms num_qps"]
  ]
}
